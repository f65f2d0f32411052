// A message whose bytes, flag and look are accessed by functions of Rust's own library; the writer forgets its flush.
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

extern "C" {
    fn mmap(at: *mut u8, nbytes: usize, prot: i32, flags: i32, file: i32, offset: i64) -> *mut u8;
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let file = OpenOptions::new().read(true).write(true).open(&words[1]).unwrap();
    let (flag, text) = unsafe {
        let pool = mmap(std::ptr::null_mut(), 2 << 20, 3, 1, file.as_raw_fd(), 0);
        (&*(pool as *const AtomicU64), std::slice::from_raw_parts_mut(pool.add(64), 64))
    };
    if words[2] == "w" {
        text.copy_from_slice(&[7u8; 64]);
        flag.store(1, Ordering::Release);
        unsafe { std::arch::x86_64::_mm_clflush(flag as *const AtomicU64 as *const u8) };
    } else {
        while flag.load(Ordering::Acquire) == 0 {
            unsafe { std::arch::x86_64::_mm_clflush(flag as *const AtomicU64 as *const u8) };
            unsafe { std::arch::x86_64::_mm_mfence() };
        }
        unsafe { std::arch::x86_64::_mm_clflush(text.as_ptr()) };
        unsafe { std::arch::x86_64::_mm_mfence() };
        println!("{}", text.iter().map(|byte| *byte as u64).sum::<u64>());
    }
}
