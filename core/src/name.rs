//! What a name may hold, checked once at the edge.

use crate::error::{Refusal, RefusalCode};
use alloc::format;

/// The longest name, in bytes: an RFC 1123 DNS label, so that every name can be served by DNS unchanged.
pub const NAME_BYTES_MAX: usize = 63;

/// Accepts what RFC 1123 calls a label, in lower case: letters, digits and inner hyphens.
///
/// # Errors
/// [`RefusalCode::Invalid`] naming `what`, the name and the rule it breaks.
pub fn check(what: &str, name: &str) -> Result<(), Refusal> {
    let invalid = |rule: &str| {
        Err(Refusal::new(RefusalCode::Invalid, format!("{what} name {name:?} {rule}; use a-z, 0-9 and -")))
    };
    if name.is_empty() {
        return invalid("is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return invalid("is longer than 63 bytes");
    }
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        return invalid("holds a character that is not allowed");
    }
    if name.starts_with('-') || name.ends_with('-') {
        return invalid("starts or ends with a hyphen");
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[track_caller]
    fn refused(name: &str) {
        let refusal = check("container", name).expect_err(name);
        assert_eq!(refusal.code, RefusalCode::Invalid);
        assert!(refusal.detail.contains(&format!("{name:?}")), "{refusal} names the name");
    }

    #[test]
    fn names_are_dns_labels() {
        for name in ["a", "web", "web-1", "0", &"x".repeat(63)] {
            check("container", name).expect(name);
        }
        for name in ["", "-a", "a-", "A", "a b", "a.b", "a_b", "a\n", "ü", "a,b", "../a", &"x".repeat(64)] {
            refused(name);
        }
    }

    #[test]
    fn the_refusal_of_a_long_name_does_not_truncate_it() {
        let long: String = "y".repeat(300);
        assert!(check("pod", &long).expect_err("long").detail.contains(&long));
    }
}
