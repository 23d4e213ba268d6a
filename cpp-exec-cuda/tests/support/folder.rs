//! A tiny model's folder that is gone when the test is.

use std::path::PathBuf;

use cpp_exec_mock::model::TinyLlama;

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// The name keeps tests of one program apart.
    pub(crate) fn tiny(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cpp-run-{}-{name}-{}", env!("CARGO_CRATE_NAME"), std::process::id()));
        TinyLlama::default().write(&path).expect("a temporary folder");
        Self(path)
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().expect("a printable path")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
