//! Numbers as bytes: LEB128 varints in their shortest form, so that equal messages are equal bytes; and a reader that trusts nothing.

use alloc::vec::Vec;

use super::error::MirrorError;

/// What counts messages or plans is below this: no stream gets there, and one more can always be counted.
pub(super) const ORDINALS: u64 = 1 << 63;

/// Appends a number, seven bits a byte, lowest first; 1 to 10 bytes.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a 32-bit number; 1 to 5 bytes.
#[inline]
pub(super) fn put32(out: &mut Vec<u8>, value: u32) {
    put(out, value.into());
}

/// The step from one block of a table to the next as a number that is small for a small step either way.
#[inline]
pub(super) const fn step(from: u32, to: u32) -> u32 {
    let step = to.wrapping_sub(from);
    (step << 1) ^ ((step as i32 >> 31) as u32)
}

/// The block that a step leads to.
#[inline]
pub(super) const fn take_step(from: u32, step: u32) -> u32 {
    from.wrapping_add((step >> 1) ^ (step & 1).wrapping_neg())
}

/// Reads a message from front to back.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`, from offset `at` on.
    pub(super) const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    fn left(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    #[inline]
    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, MirrorError> {
        let byte = *self.bytes.get(self.at).ok_or(MirrorError::Ends { what })?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], MirrorError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let array = *rest.first_chunk::<N>().ok_or(MirrorError::Ends { what })?;
        self.at += N;
        Ok(array)
    }

    /// A number in its shortest form.
    #[inline]
    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, MirrorError> {
        let at = self.at as u64;
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || byte == 0 && shift > 0 {
                return Err(MirrorError::Number { what, at });
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
            if shift > 63 {
                return Err(MirrorError::Number { what, at });
            }
        }
    }

    #[inline]
    pub(super) fn number32(&mut self, what: &'static str) -> Result<u32, MirrorError> {
        let at = self.at as u64;
        u32::try_from(self.number(what)?).map_err(|_| MirrorError::Number { what, at })
    }

    /// The number of a plan.
    #[inline]
    pub(super) fn ordinal(&mut self, what: &'static str) -> Result<u64, MirrorError> {
        let at = self.at as u64;
        let number = self.number(what)?;
        if number < ORDINALS { Ok(number) } else { Err(MirrorError::Number { what, at }) }
    }

    /// How many items of at least one byte each follow: never more than the rest could hold, so that room may be made for them.
    #[inline]
    pub(super) fn count(&mut self, what: &'static str) -> Result<u32, MirrorError> {
        let count = self.number(what)?;
        self.fits(what, count)
    }

    /// `count`, if the rest could hold so many items.
    #[inline]
    pub(super) fn fits(&self, what: &'static str, count: u64) -> Result<u32, MirrorError> {
        let left = self.left();
        let short = MirrorError::Count { what, count, left };
        if count > left { Err(short) } else { u32::try_from(count).map_err(|_| short) }
    }

    /// Appends `count` numbers to `to`. The count was checked.
    pub(super) fn numbers(&mut self, what: &'static str, count: u32, to: &mut Vec<u32>) -> Result<(), MirrorError> {
        to.reserve(count as usize);
        for _ in 0..count {
            let number = self.number32(what)?;
            to.push(number);
        }
        Ok(())
    }

    /// The byte just read may not stand there.
    pub(super) const fn odd(&self, what: &'static str) -> MirrorError {
        MirrorError::Number { what, at: self.at.saturating_sub(1) as u64 }
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<(), MirrorError> {
        if self.left() == 0 { Ok(()) } else { Err(MirrorError::Rest { at: self.at as u64 }) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(Reader::new(&out, 0).number("n"), Ok(value));
            for cut in 0..out.len() {
                assert_eq!(Reader::new(&out[..cut], 0).number("n"), Err(MirrorError::Ends { what: "n" }));
            }
            // The same number with a superfluous zero behind it.
            *out.last_mut().unwrap() |= 0x80;
            out.push(0);
            assert_eq!(Reader::new(&out, 0).number("n"), Err(MirrorError::Number { what: "n", at: 0 }), "{value}");
        }
        let eleven = vec![0xff; 11];
        assert_eq!(Reader::new(&eleven, 0).number("n"), Err(MirrorError::Number { what: "n", at: 0 }));
        assert_eq!(Reader::new(&[0x80, 0x80, 0x80, 0x80, 0x10], 0).number32("n"), Err(MirrorError::Number { what: "n", at: 0 }));
    }

    #[test]
    fn steps_lead_anywhere() {
        for (from, to, most) in [(5, 6, 2), (6, 5, 1), (0, u32::MAX, 1), (u32::MAX, 0, 2), (1 << 31, 0, u32::MAX), (7, 7, 0)] {
            assert_eq!(take_step(from, step(from, to)), to);
            assert!(step(from, to) <= most, "{from} {to} {}", step(from, to));
        }
    }

    #[test]
    fn a_count_is_never_more_than_the_rest() {
        let mut out = Vec::new();
        put(&mut out, 3);
        out.extend([1, 2, 3]);
        assert_eq!(Reader::new(&out, 0).count("n"), Ok(3));
        out.pop();
        assert_eq!(Reader::new(&out, 0).count("n"), Err(MirrorError::Count { what: "n", count: 3, left: 2 }));
    }
}
