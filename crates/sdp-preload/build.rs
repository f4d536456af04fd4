//! Link options of the shared object. They belong here and not into `RUSTFLAGS`, which would reach
//! build scripts and tools too.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=layout.ld");
    for argument in [
        // The name that `DT_NEEDED` entries and the loader's bookkeeping show.
        "-Wl,-soname,libsdp.so.1",
        // Handlers and per-thread words point into the library: it is never unloaded.
        "-Wl,-z,nodelete",
        // All references are bound before the first hook runs: nothing is looked up lazily in a
        // signal handler or in a vfork child.
        "-Wl,-z,now",
        // Each mapping costs each fork and exit. Data that would be read-only after relocation is
        // little beside the pointers to the real functions, which are looked up later
        // (docs/decisions/0023).
        "-Wl,-z,norelro",
        // A hook that uses another one uses this library's, whatever else is preloaded.
        "-Wl,-Bsymbolic-functions",
        // The code that a fork child runs lies together: the child maps the library's code anew, 16
        // pages at a time.
        "-Wl,-z,keep-text-section-prefix",
        "-nostartfiles",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // Constants and code in one mapping. LLVM's linker, which Rust uses on x86-64, has its own option for that.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-cdylib-link-arg=-Wl,--no-rosegment");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{folder}/layout.ld");
        // From glibc 2.35 on the loader puts the library at a multiple of this: at the beginning of a
        // group of pages that the kernel maps at a time.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,max-page-size=65536");
    } else {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,noseparate-code");
    }
}
