//! The commands, one file each.

pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod demo;
pub(crate) mod granularity;
pub(crate) mod plan;
pub(crate) mod pools;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod scenario;
pub(crate) mod sweep;
