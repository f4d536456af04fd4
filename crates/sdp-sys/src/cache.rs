//! Hints to the CPU's cache. Under Miri, which knows no assembly, there are none.

/// Asks for the cache line of `at`, which will be read soon. A hint: it never faults and changes nothing.
#[inline(always)]
pub fn will_read(at: *const u8) {
    let _ = at;
    // SAFETY: prefetches access nothing.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        core::arch::asm!("prefetcht0 byte ptr [{at}]", at = in(reg) at,
            options(nostack, preserves_flags, readonly));
    }
    // SAFETY: a prefetch accesses nothing, whatever the address.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at,
            options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the cache line of `at` to be written soon: another CPU's copy is fetched and given up while
/// this one goes on. A hint: it never faults and changes nothing.
#[inline(always)]
pub fn will_write(at: *const u8) {
    let _ = at;
    // SAFETY: prefetches access nothing; a processor without the instruction takes it for no operation.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{at}]", at = in(reg) at,
            options(nostack, preserves_flags, readonly));
    }
    // SAFETY: a prefetch accesses nothing, whatever the address.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{at}]", at = in(reg) at,
            options(nostack, preserves_flags, readonly));
    }
}

/// The same value, hidden from the compiler: a calculation with it does not wait for the value that
/// it was compared with.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        let mut value = value;
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {value} */", value = inout(reg) value,
                options(nostack, preserves_flags, nomem, pure));
        }
        value
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    value
}
