//! Memory that a burst of work needed and that nothing needs any more.
#![allow(unsafe_code, reason = "the allocator's own function, which no crate wraps; called in one place")]

/// Gives back to the system what the allocator keeps of it: after a wave of thousands of interfaces that is several MiB, which it would hold for as long as the process lives. Takes
/// some milliseconds. Only glibc's allocator is known to hold on to it; with another one nothing is done.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and moves or frees nothing that is in use.
    let _given = unsafe { nix::libc::malloc_trim(0) };
}
