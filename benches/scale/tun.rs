//! The three requests that make a TAP.
#![allow(unsafe_code, reason = "no crate wraps these ioctls; each is called in one place, on an open file")]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc;

nix::ioctl_write_ptr_bad!(set_iff, nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()), libc::ifreq);
nix::ioctl_write_int_bad!(set_persist, nix::request_code_write!(b'T', 203, size_of::<libc::c_int>()));
nix::ioctl_write_ptr_bad!(set_index, nix::request_code_write!(b'T', 218, size_of::<libc::c_int>()), libc::c_uint);

/// Makes a persistent TAP in the calling thread's namespace.
pub fn create(name: &str, index: u32) {
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let ifru_flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI).unwrap();
    let request = libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags } };
    // SAFETY: the file is open, and the kernel reads or writes nothing but these two values, which live on this stack frame.
    unsafe {
        set_index(file.as_raw_fd(), &raw const index).unwrap();
        set_iff(file.as_raw_fd(), &raw const request).unwrap();
        set_persist(file.as_raw_fd(), 1).unwrap();
    }
}
