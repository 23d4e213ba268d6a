//! Machine code on disk, so that a second start compiles nothing.
//!
//! A file for each source, architecture and version of NVRTC, named by their digest, with a digest of its own content: a file that is damaged,
//! or half written, is as good as none. Files are written beside their place and moved there, so that several processes may start at once.

use std::fmt;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher24};

/// The beginning of each file: what it is, and the version of its form.
const MAGIC: &[u8; 8] = b"cpp-kc01";

/// A folder of machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCache {
    folder: PathBuf,
}

/// Machine code could not be written; it can be used all the same.
#[derive(Debug)]
#[non_exhaustive]
pub struct CacheError {
    /// The file that was to be.
    pub path: PathBuf,
    /// What the system says.
    pub error: io::Error,
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}; kernels are compiled again at the next start (CPP_KERNEL_CACHE names another folder)",
            self.path.display(),
            self.error
        )
    }
}

impl std::error::Error for CacheError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl KernelCache {
    /// A cache in this folder, which is made when something is written.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's: `CPP_KERNEL_CACHE`, or `cpp-run` in `XDG_CACHE_HOME` or `~/.cache`. `None` where there is none of these.
    #[must_use]
    pub fn standard() -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        variable("CPP_KERNEL_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("cpp-run")))
            .or_else(|| variable("HOME").map(|folder| folder.join(".cache/cpp-run")))
            .map(Self::at)
    }

    /// Where machine code with this digest of its sources lies.
    #[must_use]
    pub fn path(&self, arch: &str, digest: u128) -> PathBuf {
        self.folder.join(format!("{arch}-{digest:032x}.cubin"))
    }

    /// Machine code, if it is there and whole.
    pub(super) fn read(&self, arch: &str, digest: u128) -> Option<Vec<u8>> {
        let file = std::fs::read(self.path(arch, digest)).ok()?;
        let (magic, rest) = file.split_first_chunk::<8>()?;
        let (sum, code) = rest.split_first_chunk::<16>()?;
        (magic == MAGIC && *sum == content_digest(digest, code)).then(|| code.to_vec())
    }

    /// Keeps machine code.
    pub(super) fn write(&self, arch: &str, digest: u128, code: &[u8]) -> Result<(), CacheError> {
        let path = self.path(arch, digest);
        let beside = path.with_extension(format!("{}.new", std::process::id()));
        let file = [&MAGIC[..], &content_digest(digest, code), code].concat();
        let written = std::fs::create_dir_all(&self.folder).and_then(|()| write_whole(&beside, &path, &file));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            CacheError { path, error }
        })
    }
}

fn write_whole(beside: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    std::fs::write(beside, content)?;
    std::fs::rename(beside, path)
}

/// With the digest of the sources, so that a file under a wrong name is not taken.
fn content_digest(digest: u128, code: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(&digest.to_le_bytes());
    hasher.write(code);
    hasher.finish128().as_u128().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::KernelCache;
    use std::fs;

    #[test]
    fn what_was_written_is_read_and_what_is_damaged_is_not() {
        let folder = std::env::temp_dir().join(format!("cpp-run-cache-{}", std::process::id()));
        let cache = KernelCache::at(folder.join("inner"));
        assert_eq!(cache.read("sm_90", 7), None);
        cache.write("sm_90", 7, b"machine code").unwrap();
        assert_eq!(cache.read("sm_90", 7).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.read("sm_80", 7), None);
        assert_eq!(cache.read("sm_90", 8), None);
        assert_eq!(fs::read_dir(folder.join("inner")).unwrap().count(), 1, "nothing is left beside it");

        let path = cache.path("sm_90", 7);
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.read("sm_90", 7), None, "byte {place}");
            fs::write(&path, &whole[..place]).unwrap();
            assert_eq!(cache.read("sm_90", 7), None, "cut at {place}");
        }
        // Under another name it is not what it was.
        fs::write(cache.path("sm_90", 8), &whole).unwrap();
        assert_eq!(cache.read("sm_90", 8), None);
        cache.write("sm_90", 7, b"again").unwrap();
        assert_eq!(cache.read("sm_90", 7).as_deref(), Some(&b"again"[..]));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error_that_names_it() {
        let file = std::env::temp_dir().join(format!("cpp-run-cache-file-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        let error = KernelCache::at(file.join("cache")).write("sm_90", 1, b"code").unwrap_err();
        assert!(error.to_string().contains("sm_90-") && error.to_string().contains("CPP_KERNEL_CACHE"), "{error}");
        fs::remove_file(file).unwrap();
    }
}
