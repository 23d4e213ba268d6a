//! NCCL's types, as its header has them.

use std::ffi::{c_char, c_int, c_void};

/// NCCL's handle of a communicator.
pub(super) type Handle = *mut c_void;

/// What the ranks of a communicator share: made by one of them, sent to the others over another channel. 128 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub(super) [c_char; 128]);

impl UniqueId {
    /// Bytes of an id.
    pub const SIZE: usize = 128;

    /// From bytes that [`to_bytes`](Self::to_bytes) gave, in this process or another.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(bytes.map(|byte| byte as c_char))
    }

    /// Its bytes, to be sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        self.0.map(|byte| byte as u8)
    }
}

impl std::fmt::Debug for UniqueId {
    /// It holds an address and a secret: its length alone is shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({} bytes)", Self::SIZE)
    }
}

/// The type of what is sent: `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataType {
    /// Bytes.
    Uint8,
    /// 32-bit floating point numbers.
    Float32,
    /// Their upper halves.
    Bfloat16,
}

impl DataType {
    pub(super) const fn number(self) -> c_int {
        match self {
            Self::Uint8 => 1,
            Self::Float32 => 7,
            Self::Bfloat16 => 9,
        }
    }
}

/// How a communicator is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "made by struct update from its default")]
pub struct EdgeConfig {
    /// At least so many blocks of threads for its kernels. Default 1.
    pub min_ctas: u32,
    /// At most so many: what they take, compute does not have. Two edges with 4 each occupy 8 of an H200's 132 multiprocessors. Default 4.
    pub max_ctas: u32,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self { min_ctas: 1, max_ctas: 4 }
    }
}

/// `ncclConfig_t` as of NCCL 2.17. Every later version takes it: NCCL reads as much as `size` says and fills in the rest by `version`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Config {
    pub(super) size: usize,
    pub(super) magic: u32,
    pub(super) version: u32,
    pub(super) blocking: c_int,
    pub(super) cga_cluster_size: c_int,
    pub(super) min_ctas: c_int,
    pub(super) max_ctas: c_int,
    pub(super) net_name: *const c_char,
    pub(super) split_share: c_int,
    /// Since 2.26; before it these bytes are nobody's. NCCL copies `size` bytes, so they must not be whatever lay there.
    pub(super) traffic_class: c_int,
}

impl Config {
    /// "Not set", for numbers.
    const UNDEFINED: c_int = c_int::MIN;

    pub(super) fn new(edge: EdgeConfig) -> Self {
        let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_700,
            // Calls return at once: what is asked for goes on behind them.
            blocking: 0,
            cga_cluster_size: Self::UNDEFINED,
            min_ctas: number(edge.min_ctas),
            max_ctas: number(edge.max_ctas),
            net_name: std::ptr::null(),
            split_share: Self::UNDEFINED,
            traffic_class: Self::UNDEFINED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, EdgeConfig, UniqueId};
    use std::mem::offset_of;

    #[test]
    fn ids_go_through_bytes_unchanged_and_are_not_shown() {
        let bytes: [u8; 128] = std::array::from_fn(|i| (i * 37) as u8);
        assert_eq!(UniqueId::from_bytes(bytes).to_bytes(), bytes);
        assert_eq!(format!("{:?}", UniqueId::from_bytes(bytes)), "UniqueId(128 bytes)");
    }

    #[test]
    fn the_configuration_lies_as_in_the_header() {
        assert_eq!((offset_of!(Config, blocking), offset_of!(Config, net_name), size_of::<Config>()), (16, 32, 48));
        assert_eq!(offset_of!(Config, traffic_class) + size_of::<i32>(), size_of::<Config>(), "no bytes that nobody has written");
        let config = Config::new(EdgeConfig { max_ctas: u32::MAX, ..EdgeConfig::default() });
        assert_eq!((config.size, config.blocking, config.min_ctas, config.max_ctas), (48, 0, 1, i32::MAX));
    }
}
