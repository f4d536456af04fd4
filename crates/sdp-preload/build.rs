//! Link options of the shared object. They belong here and not into `RUSTFLAGS`, which would reach
//! build scripts and tools too.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        // The name that `DT_NEEDED` entries and the loader's bookkeeping show.
        "-Wl,-soname,libsdp.so.1",
        // Handlers and per-thread words point into the library: it is never unloaded.
        "-Wl,-z,nodelete",
        // All references are bound before the first hook runs: nothing is looked up lazily in a
        // signal handler or in a vfork child.
        "-Wl,-z,now",
        "-Wl,-z,relro",
        // One hook that uses another means its own, whatever else is preloaded.
        "-Wl,-Bsymbolic-functions",
        // What a fork child runs lies together: it maps the library's code anew, 16 pages at a time.
        "-Wl,-z,keep-text-section-prefix",
        "-nostartfiles",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
