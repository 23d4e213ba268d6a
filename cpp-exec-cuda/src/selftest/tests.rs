//! The selftest's own checks, on a GPU or on the stand-ins.

use crate::cuda::{Gpu, KERNELS, KernelCache, standard_folders};
use crate::selftest::check_kernels;
use crate::selftest::kernels::{Judge, KernelChecks};

#[test]
fn every_kernel_is_checked_and_right() {
    let cache = KernelCache::at(std::env::temp_dir().join("cpp-run-test-kernels"));
    let gpu = match Gpu::open(0, &standard_folders(), Some(&cache)) {
        Ok(gpu) => gpu,
        Err(error) => {
            assert!(std::env::var_os("CPP_CUDA_DEVICE").is_none(), "CPP_CUDA_DEVICE is set, so there must be one: {error}");
            println!("not tested: {error}");
            return;
        }
    };
    let checks = check_kernels(&gpu, 1, 6).unwrap();
    for (kernel, check) in &checks {
        println!("{kernel:<24} {:>9} numbers, worst {:.3} of what is tolerated", check.numbers, check.worst);
        assert!(check.worst <= 1.0, "{kernel}: {check:?}");
    }
    let checked: Vec<&str> = checks.keys().map(String::as_str).collect();
    assert_eq!(checked, KERNELS, "every kernel there is");
}

#[test]
fn wrong_numbers_are_found() {
    let mut checks = KernelChecks::new();
    let mut judge = Judge(&mut checks);
    judge.number("a", 1.0, 1.01, 0.02);
    judge.number("b", 1.0, 1.03, 0.02);
    judge.number("c", f64::NAN, 1.0, 0.02);
    judge.equal("d", &[1, 2], &[1, 2]);
    judge.equal("e", &[1, 2], &[2, 1]);
    let passed: Vec<&str> = checks.iter().filter(|(_, check)| check.worst <= 1.0).map(|(kernel, _)| &kernel[..]).collect();
    assert_eq!(passed, ["a", "d"]);
    assert_eq!(checks["e"].numbers, 2);
}
