//! Several KV groups over one pool: what is given back when, what is found again, what is computed again after a loss.

mod bench;
mod configurations;
mod ends;
mod prefixes;
mod reserves;
mod states;
mod windows;
