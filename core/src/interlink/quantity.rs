//! Kubernetes quantities: `500m`, `1.5`, `64Mi`, `1e3`.
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>

/// A quantity in thousandths, rounded up; `None` when the text is none.
pub fn milli(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    // As an integer and a power of ten: nothing is lost to a binary fraction.
    let fraction = fraction.get(..fraction.len().min(9))?;
    let mut value: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    for digit in fraction.bytes() {
        value = value.checked_mul(10)?.checked_add(u128::from(digit - b'0'))?;
    }
    let divisor = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    // Thousandths per unit of the suffix; a suffix below one divides.
    let (times, over): (u128, u128) = match suffix {
        "" => (1_000, 1),
        "n" => (1, 1_000_000),
        "u" => (1, 1_000),
        "m" => (1, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1_000 << 10, 1),
        "Mi" => (1_000 << 20, 1),
        "Gi" => (1_000 << 30, 1),
        "Ti" => (1_000 << 40, 1),
        "Pi" => (1_000 << 50, 1),
        _ => {
            let exponent: u32 = suffix.strip_prefix(['e', 'E'])?.trim_start_matches('+').parse().ok()?;
            (10_u128.checked_pow(exponent.min(24))?.checked_mul(1_000)?, 1)
        }
    };
    let milli = value.checked_mul(times)?.div_ceil(divisor.checked_mul(over)?);
    u64::try_from(milli).ok()
}

/// A quantity in whole units, rounded up: bytes, or a count.
pub fn units(text: &str) -> Option<u64> {
    milli(text).map(|milli| milli.div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use super::{milli, units};

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("500m", Some(500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("2", Some(2_000)),
            ("1e3", Some(1_000_000)),
            ("1500u", Some(2)),
            ("1.0000000001", Some(1_000)),
            ("", None),
            ("m", None),
            ("1x", None),
            ("1.2.3", None),
            ("-1", None),
            ("999999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(milli(text), expected, "{text:?}");
        }
        assert_eq!(units("64Mi"), Some(64 << 20));
        assert_eq!(units("1.5Gi"), Some(3 << 29));
        assert_eq!(units("128974848"), Some(128_974_848));
        assert_eq!(units("1M"), Some(1_000_000));
    }
}
