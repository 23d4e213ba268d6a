//! Names of the things that the kernel counts.

use core::fmt;

/// A token id, as the model's vocabulary numbers it.
pub type TokenId = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

id! {
    /// The caller's name for a request; unique among the requests that are alive.
    RequestId(u64), "request "
}
id! {
    /// The number of a batch, counted from 0 over the life of a [`Scheduler`](crate::Scheduler); empty answers do not count.
    BatchId(u64), "batch "
}
id! {
    /// The number of a KV block, from 0 to `num_blocks - 1`.
    BlockId(u32), "block "
}
