//! What a machine has: the driver, the GPUs and the libraries that a CUDA device needs. Files are looked at, nothing is loaded.

use std::fmt;
use std::path::{Path, PathBuf};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// The driver's version, if its kernel module is loaded.
    pub driver: Option<String>,
    /// The models of the GPUs.
    pub gpus: Vec<String>,
    /// Libraries: the name, and where it was found.
    pub libraries: Vec<(&'static str, Option<PathBuf>)>,
    /// Processors that this process may use.
    pub processors: usize,
    /// Bytes of memory that are free for use; 0 = not known.
    pub memory: u64,
}

/// What a CUDA device loads, and which Debian or Python package has it.
pub const LIBRARIES: [(&str, &str); 5] = [
    ("libcuda.so.1", "NVIDIA's driver, 580 or later"),
    ("libnvrtc.so.13", "pip install nvidia-cuda-nvrtc==13.0.88"),
    ("libcublas.so.13", "pip install nvidia-cublas"),
    ("libcublasLt.so.13", "pip install nvidia-cublas"),
    ("libnccl.so.2", "pip install nvidia-nccl-cu13; needed for stages on several GPUs"),
];

/// The first driver that CUDA 13 runs on, by NVIDIA's table of compatible versions.
pub const MIN_DRIVER: u32 = 580;

impl Machine {
    /// Looks at this machine. Libraries are looked for in `CPP_CUDA_LIB_DIR`, `LD_LIBRARY_PATH` and where systems keep them.
    #[must_use]
    pub fn look() -> Self {
        Self::look_in(&[])
    }

    /// As [`look`](Self::look), with libraries in these folders before all others.
    #[must_use]
    pub fn look_in(first: &[PathBuf]) -> Self {
        let mut folders = first.to_vec();
        for variable in ["CPP_CUDA_LIB_DIR", "LD_LIBRARY_PATH"] {
            folders.extend(std::env::var_os(variable).iter().flat_map(std::env::split_paths));
        }
        let standard = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/lib64"];
        folders.extend(standard.iter().map(PathBuf::from));
        Self::at(Path::new("/proc"), &folders)
    }

    /// As [`look`](Self::look), at a machine whose `/proc` is there and whose libraries are in these folders.
    #[must_use]
    pub fn at(proc: &Path, folders: &[PathBuf]) -> Self {
        let driver = std::fs::read_to_string(proc.join("driver/nvidia/version")).ok().map(|text| {
            let words = text.lines().next().unwrap_or_default().split_whitespace();
            let version = words.clone().find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
            version.unwrap_or("of an unknown version").to_owned()
        });
        let entries = std::fs::read_dir(proc.join("driver/nvidia/gpus")).into_iter().flatten().flatten();
        let mut gpus: Vec<String> = entries
            .filter_map(|entry| std::fs::read_to_string(entry.path().join("information")).ok())
            .map(|text| {
                let model = text.lines().find_map(|line| line.strip_prefix("Model:"));
                model.unwrap_or("of an unknown model").trim().to_owned()
            })
            .collect();
        gpus.sort();
        let find = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        let memory = std::fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
        let memory =
            memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Self {
            driver,
            gpus,
            libraries: LIBRARIES.iter().map(|(name, _)| (*name, find(name))).collect(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory.unwrap_or_default() * 1024,
        }
    }

    /// Why no CUDA device can run here, in one line; `None`: nothing speaks against it.
    #[must_use]
    pub fn why_no_cuda(&self) -> Option<String> {
        if self.gpus.is_empty() {
            return Some(match &self.driver {
                None => "no GPU: NVIDIA's driver is not loaded".to_owned(),
                Some(driver) => format!("no GPU: NVIDIA's driver {driver} is loaded and has none"),
            });
        }
        if let Some(driver) = &self.driver
            && driver.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major < MIN_DRIVER)
        {
            return Some(format!("NVIDIA's driver {driver} is too old for CUDA 13: install {MIN_DRIVER} or later"));
        }
        let missing: Vec<_> =
            self.libraries.iter().filter(|(name, path)| path.is_none() && *name != "libnccl.so.2").map(|(name, _)| *name).collect();
        (!missing.is_empty()).then(|| format!("{} not found (cpp-run doctor says what to install)", missing.join(", ")))
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processors   {}", self.processors)?;
        match self.memory {
            0 => writeln!(f, "memory       not known")?,
            bytes => writeln!(f, "memory       {:.1} GiB free", bytes as f64 / f64::from(1 << 30))?,
        }
        writeln!(f, "driver       {}", self.driver.as_deref().unwrap_or("none"))?;
        match &self.gpus[..] {
            [] => writeln!(f, "GPUs         none")?,
            gpus => gpus.iter().try_for_each(|gpu| writeln!(f, "GPU          {gpu}"))?,
        }
        for ((name, path), (_, source)) in self.libraries.iter().zip(LIBRARIES) {
            match path {
                // The file behind the link has the whole version in its name.
                Some(path) => writeln!(f, "{name:<19} {}", path.canonicalize().as_ref().unwrap_or(path).display())?,
                None => writeln!(f, "{name:<19} not found: {source}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Machine;
    use std::fs;
    use std::path::PathBuf;

    #[test]
    fn a_machine_is_what_its_files_say() {
        let root = std::env::temp_dir().join(format!("cpp-run-machine-{}", std::process::id()));
        let (proc, lib) = (root.join("proc"), root.join("lib"));
        fs::create_dir_all(proc.join("driver/nvidia")).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let look = || Machine::at(&proc, std::slice::from_ref(&lib));
        assert!(look().why_no_cuda().unwrap().contains("not loaded"));

        fs::write(proc.join("driver/nvidia/version"), "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05  Release Build\n").unwrap();
        fs::write(proc.join("meminfo"), "MemTotal: 9 kB\nMemAvailable:    2097152 kB\n").unwrap();
        assert_eq!((look().driver.as_deref(), look().memory), (Some("580.95.05"), 2 << 30));
        assert!(look().why_no_cuda().unwrap().contains("580.95.05"));

        let gpu = proc.join("driver/nvidia/gpus/0000:01:00.0");
        fs::create_dir_all(&gpu).unwrap();
        fs::write(gpu.join("information"), "Model: \t\t NVIDIA H200\nIRQ: 5\n").unwrap();
        assert_eq!(look().gpus, ["NVIDIA H200"]);
        assert!(look().why_no_cuda().unwrap().starts_with("libcuda.so.1, libnvrtc.so.13"));

        fs::write(proc.join("driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Release Build\n")
            .unwrap();
        assert!(look().why_no_cuda().unwrap().contains("535.183.01 is too old"));
        fs::write(proc.join("driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n")
            .unwrap();
        for name in ["libcuda.so.1", "libnvrtc.so.13", "libcublas.so.13", "libcublasLt.so.13"] {
            fs::write(lib.join(name), "").unwrap();
        }
        assert_eq!(look().why_no_cuda(), None);
        let text = look().to_string();
        assert!(text.contains("NVIDIA H200") && text.contains("libnccl.so.2        not found: pip"), "{text}");
        assert_eq!(look().libraries[0].1, Some(PathBuf::from(&lib).join("libcuda.so.1")));
        fs::remove_dir_all(root).unwrap();
    }
}
