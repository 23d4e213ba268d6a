//! What the processes of one pipeline know and strangers do not.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;

/// A code that only somebody who knows a key can have made: HMAC-SHA-256 (RFC 2104).
pub(super) type Code = [u8; 32];

/// The environment variable that holds the secret itself. Never an argument: those are shown to every user of a machine.
pub const SECRET_VARIABLE: &str = "CPP_SECRET";
/// The environment variable that names a file with the secret; only its owner may read it.
pub const SECRET_FILE_VARIABLE: &str = "CPP_SECRET_FILE";

/// Bytes of a file with a secret that are read: others are no secret.
const LONGEST: u64 = 4096;

/// The shared secret of the processes of a pipeline. It is shown by nothing, and never sent: both sides prove that they know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Why there is no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretError {
    /// It is too short to be one.
    Short {
        /// Where it comes from.
        source: String,
        /// Characters that it has.
        found: usize,
    },
    /// The file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// Others than its owner may read the file.
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Neither variable is set.
    None,
    /// The system gives no random numbers.
    Random(String),
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { source, found } => {
                write!(f, "{source} has {found} characters, a secret needs {} or more: openssl rand -hex 32 makes one", Secret::MIN_LEN)
            }
            Self::File { path, problem } => write!(f, "{SECRET_FILE_VARIABLE}: {}: {problem}", path.display()),
            Self::Open { path, mode } => {
                write!(f, "{SECRET_FILE_VARIABLE}: {}: others may read it (mode {mode:03o}): chmod 600 it", path.display())
            }
            Self::None => write!(
                f,
                "processes need a secret in common: set {SECRET_FILE_VARIABLE} or {SECRET_VARIABLE} for all of them (openssl rand -hex 32 makes one)"
            ),
            Self::Random(problem) => write!(f, "no random numbers: {problem}"),
        }
    }
}

impl std::error::Error for SecretError {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Characters that a secret has at least. Whoever listens in could try shorter ones out.
    pub const MIN_LEN: usize = 16;

    /// A secret, without the white space around it.
    ///
    /// # Errors
    /// It is too short.
    pub fn new(text: &str) -> Result<Self, SecretError> {
        Self::from_source(text, "the secret")
    }

    fn from_source(text: &str, source: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if text.len() < Self::MIN_LEN {
            return Err(SecretError::Short { source: source.to_owned(), found: text.len() });
        }
        Ok(Self(text.to_owned()))
    }

    /// A new one: 256 random bits of the system.
    ///
    /// # Errors
    /// The system gives none.
    pub fn random() -> Result<Self, SecretError> {
        Ok(Self(random()?.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The secret of this process's environment: [`SECRET_VARIABLE`], else the file that [`SECRET_FILE_VARIABLE`] names.
    ///
    /// # Errors
    /// There is none, or it is none.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, SecretError> {
        if let Some(text) = get(SECRET_VARIABLE) {
            return Self::from_source(&text.to_string_lossy(), SECRET_VARIABLE);
        }
        let path = PathBuf::from(get(SECRET_FILE_VARIABLE).ok_or(SecretError::None)?);
        let file = |error: std::io::Error| SecretError::File { path: path.clone(), problem: error.to_string() };
        // Opened once: what is checked is what is read, whatever the name stands for by then.
        let mut opened = File::open(&path).map_err(file)?;
        let mode = open_to(&opened).map_err(file)?;
        if mode & 0o077 != 0 {
            return Err(SecretError::Open { path, mode });
        }
        let mut text = String::new();
        opened.by_ref().take(LONGEST).read_to_string(&mut text).map_err(file)?;
        Self::from_source(&text, SECRET_FILE_VARIABLE)
    }

    /// The secret itself, for the environment of a process that is started.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// The code of some texts, which differs for each purpose. O(their length).
    pub(super) fn code(&self, purpose: &str, texts: &[&[u8]]) -> Code {
        code(self.0.as_bytes(), purpose, texts)
    }
}

/// The code under a key. Each text counts with its length, so that no two lists of texts are the same.
pub(super) fn code(key: &[u8], purpose: &str, texts: &[&[u8]]) -> Code {
    let mut hmac = keyed(key);
    for text in [purpose.as_bytes()].iter().chain(texts) {
        hmac.update(&(text.len() as u64).to_le_bytes());
        hmac.update(text);
    }
    hmac.finalize().into_bytes().into()
}

pub(super) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of every length"))
}

/// Compares in the same time wherever the first difference is.
pub(super) fn same(a: &Code, b: &Code) -> bool {
    a.iter().zip(b).fold(0, |differences, (a, b)| std::hint::black_box(differences | (a ^ b))) == 0
}

/// Numbers that nobody can foresee, and that never come again.
pub(super) fn random() -> Result<[u8; 32], SecretError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| SecretError::Random(error.to_string()))?;
    Ok(bytes)
}

/// The permission bits of a file.
#[cfg(unix)]
fn open_to(file: &File) -> std::io::Result<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(file.metadata()?.permissions().mode() & 0o777)
}

#[cfg(not(unix))]
fn open_to(_: &File) -> std::io::Result<u32> {
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::{Secret, SecretError, code, same};
    use std::ffi::OsString;

    #[test]
    fn codes_are_hmac_sha_256() {
        // RFC 4231, test case 2.
        use hmac::Mac as _;
        let mut hmac = super::keyed(b"Jefe");
        hmac.update(b"what do ya want for nothing?");
        let text: String = hmac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn purpose_and_borders_of_texts_count() {
        let base = code(b"key", "a", &[b"bc"]);
        assert!(same(&base, &code(b"key", "a", &[b"bc"])));
        for other in [code(b"key", "ab", &[b"c"]), code(b"key", "a", &[b"b", b"c"]), code(b"kez", "a", &[b"bc"])] {
            assert!(!same(&base, &other));
        }
    }

    #[test]
    fn a_secret_shows_itself_to_nobody() {
        let secret = Secret::new(" 0123456789abcdef\n").unwrap();
        assert_eq!((format!("{secret:?}").as_str(), secret.reveal()), ("Secret(..)", "0123456789abcdef"));
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }

    #[test]
    fn a_secret_comes_from_the_environment_or_a_closed_file() {
        let from = |name: &'static str, value: &str| {
            let value = OsString::from(value);
            Secret::from_env(move |variable| (variable == name).then(|| value.clone()))
        };
        assert_eq!(Secret::from_env(|_| None), Err(SecretError::None));
        let short = from("CPP_SECRET", "short").unwrap_err();
        assert!(!short.to_string().contains("short "), "the secret stands in no message: {short}");
        assert!(from("CPP_SECRET", "long enough, I say").is_ok());
        assert!(matches!(from("CPP_SECRET_FILE", "/nowhere"), Err(SecretError::File { .. })));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let path = std::env::temp_dir().join(format!("cpp-secret-{}", std::process::id()));
            std::fs::write(&path, "0123456789abcdef0123\n").unwrap();
            let at = |mode| {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
                from("CPP_SECRET_FILE", path.to_str().unwrap())
            };
            assert_eq!(at(0o640), Err(SecretError::Open { path: path.clone(), mode: 0o640 }));
            assert_eq!(at(0o600), Secret::new("0123456789abcdef0123"));
            std::fs::remove_file(path).unwrap();
        }
    }
}
