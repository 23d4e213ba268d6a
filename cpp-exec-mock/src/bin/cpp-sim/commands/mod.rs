//! The commands, one file each.

pub(crate) mod compare;
pub(crate) mod demo;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod scenario;
