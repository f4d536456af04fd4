#!/usr/bin/env python3
"""User instructions of a small build by cargo, with and without the library in every process of it.

The crate has a dependency with a build script, so that cargo, rustc, the compiler driver, the linker and a program just
built run, as in any build. valgrind counts the instructions of each process (a system call counts as one); printed are
their sums, and the ratio of each build with the library to the builds without beside it. A process that executes another
program counts from there: what a child does before that is left out, with and without the library.

    benches/build_cost.py [--turns N] [--library FILE] [--processes]
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = {
    "Cargo.toml": '[package]\nname = "app"\nversion = "0.0.0"\nedition = "2021"\n\n'
    '[dependencies]\npart = { path = "part" }\n\n[workspace]\n',
    "src/main.rs": 'fn main() {\n    println!("{}", part::made());\n}\n',
    "part/Cargo.toml": '[package]\nname = "part"\nversion = "0.0.0"\nedition = "2021"\nbuild = "build.rs"\n',
    "part/build.rs": 'fn main() {\n    println!("cargo:rustc-env=MADE=by the script");\n}\n',
    "part/src/lib.rs": 'pub fn made() -> &\'static str {\n    env!("MADE")\n}\n',
}


def build(folder, library, toolchain):
    """Builds the crate from nothing; for each process its program and its instructions."""
    for name, text in FILES.items():
        path = folder / "crate" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    counts = folder / "counts"
    counts.mkdir()
    environment = {
        "PATH": f"{toolchain}/bin:/usr/bin:/bin", "HOME": str(folder), "CARGO_HOME": str(folder / "cargo"),
        # Addresses and orders that differ from run to run are left to chance as little as can be.
        "CARGO_BUILD_JOBS": "1", "CARGO_INCREMENTAL": "0",
        **({"LD_PRELOAD": str(library)} if library else {}),
    }
    command = ["valgrind", "--quiet", "--trace-children=yes", "--tool=cachegrind", "--cache-sim=no",
               f"--log-file={counts}/%p.log", f"--cachegrind-out-file={counts}/%p.out",
               f"{toolchain}/bin/cargo", "build", "--quiet", "--offline"]
    subprocess.run(command, cwd=folder / "crate", env=environment, check=True)
    made = subprocess.run([folder / "crate/target/debug/app"], check=True, capture_output=True, text=True).stdout
    assert made == "by the script\n", made
    found = []
    for file in counts.glob("*.out"):
        text = file.read_text(encoding="utf-8", errors="replace")
        program = re.search(r"^cmd: *(\S+)", text, re.MULTILINE).group(1)
        found.append((pathlib.Path(program).name, int(re.search(r"^summary: *(\d+)", text, re.MULTILINE).group(1))))
    return found


def by_program(processes):
    """How many there were of each program, and their instructions."""
    sums = {}
    for program, n in processes:
        program = re.sub(r"-[0-9a-f]{16}$", "", program)
        count, before = sums.get(program, (0, 0))
        sums[program] = count + 1, before + n
    return sums


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--library", type=pathlib.Path, default=ROOT / "target/release/libsdp.so")
    arguments.add_argument("--processes", action="store_true", help="print each program's processes, too")
    options = arguments.parse_args()
    query = ["rustc", "--print", "sysroot"]
    toolchain = subprocess.run(query, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    totals = {False: [], True: []}
    for turn in range(options.turns):
        for is_loaded in (False, True) if turn % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as scratch:
                # Names of one length each time: paths are hashed and copied.
                folder = pathlib.Path(scratch) / "build"
                folder.mkdir()
                processes = build(folder, options.library.resolve() if is_loaded else None, toolchain)
            totals[is_loaded].append(sum(n for _, n in processes))
            how = "with the library" if is_loaded else "without"
            print(f"{how:17} {totals[is_loaded][-1]:15} instructions of {len(processes)} processes", flush=True)
            if options.processes:
                for program, (count, n) in sorted(by_program(processes).items()):
                    print(f"    {program:24} {count:3} {n:15}", flush=True)
    ratios = [with_it / without - 1 for without, with_it in zip(totals[False], totals[True])]
    print(f"with the library {100 * statistics.median(ratios):+.3f} % "
          f"[{100 * min(ratios):+.3f}, {100 * max(ratios):+.3f}]; "
          f"builds without differ by {100 * (max(totals[False]) / min(totals[False]) - 1):.3f} %")


if __name__ == "__main__":
    main()
