//! The expressions of Holdfast's rules, over libnftnl where the safe crate has no form for them.

use nftnl::{
    Rule,
    expr::Expression,
    nftnl_sys::{self as sys, libc},
};
use std::{ffi::CStr, fmt, ptr::NonNull};

/// The `n`th 4-byte register: NFT_REG32_00 + n.
pub(crate) const fn register(n: u32) -> u32 {
    libc::NFT_REG32_00 as u32 + n
}

/// Where a payload's offset starts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Header {
    /// Ethernet.
    Link,
    /// IP, or ARP.
    Network,
    /// TCP, UDP, ICMP.
    Transport,
}

/// How a comparison goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compare {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
}

/// Where a rule ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Accept,
    Drop,
    Jump(&'static CStr),
}

/// One expression; registers are counted in 4-byte steps.
#[derive(Clone)]
pub(crate) enum Expr {
    /// Loads `meta KEY`.
    Meta(libc::c_int, u32),
    /// Writes a register to the packet's mark.
    SetMark(u32),
    /// Loads bytes of the packet: header, offset, length, register.
    Payload(Header, u32, u32, u32),
    /// Loads `ct KEY`.
    Ct(libc::c_int, u32),
    /// Loads the destination address's type: RTN_LOCAL and its kin, of linux/rtnetlink.h.
    DestinationType(u32),
    /// Likewise, as the link sees it that the packet came in by: another link's address is not local to it.
    DestinationTypeAtLink(u32),
    /// Compares a register.
    Compare(Compare, u32, Vec<u8>),
    /// Masks a 4-byte register in place.
    Mask(u32, [u8; 4]),
    /// The key must be in a set.
    Member(&'static CStr, u32),
    /// The key must not be in a set.
    NoMember(&'static CStr, u32),
    /// The key must be in a map; its data goes to the second register.
    Map(&'static CStr, u32, u32),
    /// The key must be in a map, which says what becomes of the packet.
    Verdicts(&'static CStr, u32),
    /// Rewrites the destination to the IPv4 address and port in these registers.
    DestinationNat(u32, u32),
    /// Rewrites the source to the outgoing link's address.
    Masquerade,
    /// Ends the rule.
    Verdict(End),
}

// The base's version is a digest of this text, so it must name everything.
impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, values) = self.parts();
        write!(f, "{name:?}{values:?}")
    }
}

/// A value of an expression's attribute.
#[derive(Debug)]
enum Value<'a> {
    Number(u32),
    Bytes(&'a [u8]),
    Text(&'static CStr),
}

impl Expr {
    /// Name and attributes as libnftnl knows them: its expr.h.
    fn parts(&self) -> (&'static CStr, Vec<(u32, Value<'_>)>) {
        use Value::{Bytes, Number, Text};
        match self {
            Self::Meta(key, to) => (
                c"meta",
                vec![
                    (sys::NFTNL_EXPR_META_KEY, Number(key.cast_unsigned())),
                    (sys::NFTNL_EXPR_META_DREG, Number(register(*to))),
                ],
            ),
            Self::SetMark(from) => (
                c"meta",
                vec![
                    (sys::NFTNL_EXPR_META_KEY, Number(libc::NFT_META_MARK.cast_unsigned())),
                    (sys::NFTNL_EXPR_META_SREG, Number(register(*from))),
                ],
            ),
            Self::Payload(header, offset, length, to) => {
                let base = match header {
                    Header::Link => libc::NFT_PAYLOAD_LL_HEADER,
                    Header::Network => libc::NFT_PAYLOAD_NETWORK_HEADER,
                    Header::Transport => libc::NFT_PAYLOAD_TRANSPORT_HEADER,
                };
                (
                    c"payload",
                    vec![
                        (sys::NFTNL_EXPR_PAYLOAD_BASE, Number(base.cast_unsigned())),
                        (sys::NFTNL_EXPR_PAYLOAD_OFFSET, Number(*offset)),
                        (sys::NFTNL_EXPR_PAYLOAD_LEN, Number(*length)),
                        (sys::NFTNL_EXPR_PAYLOAD_DREG, Number(register(*to))),
                    ],
                )
            }
            Self::Ct(key, to) => (
                c"ct",
                vec![
                    (sys::NFTNL_EXPR_CT_KEY, Number(key.cast_unsigned())),
                    (sys::NFTNL_EXPR_CT_DREG, Number(register(*to))),
                ],
            ),
            Self::Compare(how, from, data) => {
                let op = match how {
                    Compare::Equal => libc::NFT_CMP_EQ,
                    Compare::NotEqual => libc::NFT_CMP_NEQ,
                    Compare::AtLeast => libc::NFT_CMP_GTE,
                    Compare::AtMost => libc::NFT_CMP_LTE,
                };
                (
                    c"cmp",
                    vec![
                        (sys::NFTNL_EXPR_CMP_SREG, Number(register(*from))),
                        (sys::NFTNL_EXPR_CMP_OP, Number(op.cast_unsigned())),
                        (sys::NFTNL_EXPR_CMP_DATA, Bytes(data)),
                    ],
                )
            }
            Self::Mask(at, mask) => (
                c"bitwise",
                vec![
                    (sys::NFTNL_EXPR_BITWISE_SREG, Number(register(*at))),
                    (sys::NFTNL_EXPR_BITWISE_DREG, Number(register(*at))),
                    (sys::NFTNL_EXPR_BITWISE_LEN, Number(4)),
                    (sys::NFTNL_EXPR_BITWISE_MASK, Bytes(mask)),
                    (sys::NFTNL_EXPR_BITWISE_XOR, Bytes(&[0; 4])),
                ],
            ),
            Self::Member(set, key) => (
                c"lookup",
                vec![
                    (sys::NFTNL_EXPR_LOOKUP_SREG, Number(register(*key))),
                    (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
                ],
            ),
            Self::NoMember(set, key) => (
                c"lookup",
                vec![
                    (sys::NFTNL_EXPR_LOOKUP_SREG, Number(register(*key))),
                    (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
                    (sys::NFTNL_EXPR_LOOKUP_FLAGS, Number(NFT_LOOKUP_F_INV)),
                ],
            ),
            Self::Map(set, key, to) => (
                c"lookup",
                vec![
                    (sys::NFTNL_EXPR_LOOKUP_SREG, Number(register(*key))),
                    (sys::NFTNL_EXPR_LOOKUP_DREG, Number(register(*to))),
                    (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
                ],
            ),
            Self::Verdicts(set, key) => (
                c"lookup",
                vec![
                    (sys::NFTNL_EXPR_LOOKUP_SREG, Number(register(*key))),
                    (sys::NFTNL_EXPR_LOOKUP_DREG, Number(libc::NFT_REG_VERDICT.cast_unsigned())),
                    (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
                ],
            ),
            Self::DestinationNat(address, port) => (
                c"nat",
                vec![
                    (sys::NFTNL_EXPR_NAT_TYPE, Number(libc::NFT_NAT_DNAT.cast_unsigned())),
                    (sys::NFTNL_EXPR_NAT_FAMILY, Number(libc::NFPROTO_IPV4.cast_unsigned())),
                    (sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, Number(register(*address))),
                    (sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, Number(register(*port))),
                ],
            ),
            Self::DestinationType(to) => (
                c"fib",
                vec![
                    (sys::NFTNL_EXPR_FIB_DREG, Number(register(*to))),
                    (sys::NFTNL_EXPR_FIB_RESULT, Number(NFT_FIB_RESULT_ADDRTYPE)),
                    (sys::NFTNL_EXPR_FIB_FLAGS, Number(NFTA_FIB_F_DADDR)),
                ],
            ),
            Self::DestinationTypeAtLink(to) => (
                c"fib",
                vec![
                    (sys::NFTNL_EXPR_FIB_DREG, Number(register(*to))),
                    (sys::NFTNL_EXPR_FIB_RESULT, Number(NFT_FIB_RESULT_ADDRTYPE)),
                    (sys::NFTNL_EXPR_FIB_FLAGS, Number(NFTA_FIB_F_DADDR | NFTA_FIB_F_IIF)),
                ],
            ),
            Self::Masquerade => (c"masq", Vec::new()),
            Self::Verdict(end) => {
                let verdict = match end {
                    End::Accept => libc::NF_ACCEPT,
                    End::Drop => libc::NF_DROP,
                    End::Jump(_) => libc::NFT_JUMP,
                };
                let mut values = vec![
                    (sys::NFTNL_EXPR_IMM_DREG, Number(libc::NFT_REG_VERDICT.cast_unsigned())),
                    (sys::NFTNL_EXPR_IMM_VERDICT, Number(verdict.cast_unsigned())),
                ];
                if let End::Jump(chain) = end {
                    values.push((sys::NFTNL_EXPR_IMM_CHAIN, Text(chain)));
                }
                (c"immediate", values)
            }
        }
    }
}

/// Of linux/netfilter/nf_tables.h.
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
/// Likewise.
const NFTA_FIB_F_DADDR: u32 = 1 << 1;
const NFTA_FIB_F_IIF: u32 = 1 << 3;
/// `NFT_LOOKUP_F_INV` of linux/netfilter/nf_tables.h.
const NFT_LOOKUP_F_INV: u32 = 1;

impl Expression for Expr {
    fn to_expr(&self, _rule: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        let (name, values) = self.parts();
        // SAFETY: the name is NUL-terminated; the result is checked below.
        let allocated = unsafe { sys::nftnl_expr_alloc(name.as_ptr()) };
        let Some(expr) = NonNull::new(allocated) else {
            // The name is one that libnftnl knows, so this is memory exhaustion, as in the crate's own forms.
            std::process::abort();
        };
        for (attribute, value) in values {
            let attribute = attribute as u16;
            // SAFETY: the expression is live and not shared; attribute and value type belong together for an
            // expression of this name (libnftnl's expr.h), and libnftnl copies bytes and text. A failure can only
            // be exhaustion of memory; the kernel refuses an expression without the attribute.
            unsafe {
                match value {
                    Value::Number(number) => sys::nftnl_expr_set_u32(expr.as_ptr(), attribute, number),
                    Value::Bytes(bytes) => {
                        let data = bytes.as_ptr().cast();
                        let _ = sys::nftnl_expr_set(expr.as_ptr(), attribute, data, bytes.len() as u32);
                    }
                    Value::Text(text) => {
                        let _ = sys::nftnl_expr_set_str(expr.as_ptr(), attribute, text.as_ptr());
                    }
                }
            }
        }
        // The rule that it is added to frees it.
        expr
    }
}
