//! Models: the code of this crate, run under every interleaving and every reordering that the memory
//! model allows (loom), within a bound on preemptions.
//!
//! Built with `--cfg loom` only; `cargo xtask models` does that. Each model is a closure that
//! starts two or three threads on the real arm words, doorbell page, ring or lock and asserts the
//! promises. It refuses to stop at that: [`twins`] then takes away, one at a time, each ordering,
//! fence and atomic read-modify-write of the real code that the model passed, and demands that the
//! model fails. Each place whose loss no model notices is listed with the model, with the reason,
//! and the list must be exact: an ordering without a justification, or a model that has gone blind,
//! is a failed test.
//!
//! Loom takes sequentially consistent loads and stores for acquire and release ones; fences it
//! knows. Code that holds here therefore does not need its accesses, only its fences, to be so.

mod arm;
mod doorbell;
mod early;
mod lock;
mod ring;
pub(crate) mod stand_in;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
};

use stand_in::{Loss, Site};

/// Preemptions that a schedule may have, unless the model says otherwise; one more with [`LONG`].
const PREEMPTIONS: usize = 2;
/// Set by `cargo xtask models --long`.
const LONG: &str = "SDP_MODELS_LONG";

std::thread_local! {
    /// Set while a twin runs: its panic is wanted, and not to be shown.
    static IS_TWIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn quiet_twins() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_TWIN.get() {
                shown(info);
            }
        }));
    });
}

/// Runs `model` under all schedules; how many, or that it failed.
fn explore(
    model: &Arc<dyn Fn() + Send + Sync>,
    preemptions: usize,
    twin: Option<(Site, Loss)>,
) -> Result<u64, String> {
    let executions = Arc::new(AtomicU64::new(0));
    let (count, model) = (executions.clone(), model.clone());
    // A system thread of its own: a model that failed may leave loom's state of this thread behind.
    let ended = std::thread::spawn(move || {
        IS_TWIN.set(twin.is_some());
        stand_in::weaken(twin);
        let mut builder = loom::model::Builder::new();
        let more = usize::from(std::env::var_os(LONG).is_some());
        builder.preemption_bound = Some(preemptions + more);
        let run = catch_unwind(AssertUnwindSafe(|| {
            builder.check(move || {
                count.fetch_add(1, Ordering::Relaxed);
                model();
            });
        }));
        let sites = stand_in::seen();
        match run {
            Ok(()) => Ok(sites),
            Err(cause) => Err(cause
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default()),
        }
    })
    .join()
    .map_err(|_| "the model's thread died".to_owned())?;
    let sites = ended?;
    SITES.with_borrow_mut(|all| all.extend(sites));
    Ok(executions.load(Ordering::Relaxed))
}

std::thread_local! {
    static SITES: std::cell::RefCell<BTreeSet<(Site, Loss)>> =
        const { std::cell::RefCell::new(BTreeSet::new()) };
}

/// The model holds.
fn holds(name: &str, model: impl Fn() + Send + Sync + 'static) {
    quiet_twins();
    match explore(&(Arc::new(model) as Arc<dyn Fn() + Send + Sync>), PREEMPTIONS, None) {
        Ok(executions) => println!("{name}: holds in {executions} executions"),
        Err(cause) => panic!("{name}: {cause}"),
    }
}

/// A twin that was weakened by hand fails.
fn fails(name: &str, model: impl Fn() + Send + Sync + 'static) {
    quiet_twins();
    let model = Arc::new(model) as Arc<dyn Fn() + Send + Sync>;
    let site = Site { file: "", line: 0, column: 0, operation: "" };
    // No such site: nothing else is weakened, but the twin is quiet.
    match explore(&model, PREEMPTIONS, Some((site, Loss::Ordering))) {
        Ok(executions) => panic!("{name}: not noticed in {executions} executions"),
        Err(cause) => println!("{name}: fails, as it must: {}", first_line(&cause)),
    }
}

/// A loss that `model` cannot notice: source file, the line's text or its beginning, the loss, the reason.
type Spared = (&'static str, &'static str, Loss, &'static str);

/// The model holds within so many preemptions, and every twin of it that lacks something at one site
/// fails, but for those in `spared`, which must be all that survive. `places`: the sites that are
/// weakened, by file and the beginning of the line.
fn twins(
    name: &str,
    preemptions: usize,
    places: &[(&str, &str)],
    spared: &[Spared],
    model: impl Fn() + Send + Sync + 'static,
) {
    quiet_twins();
    let model = Arc::new(model) as Arc<dyn Fn() + Send + Sync>;
    SITES.with_borrow_mut(BTreeSet::clear);
    match explore(&model, preemptions, None) {
        Ok(executions) => println!("{name}: holds in {executions} executions"),
        Err(cause) => panic!("{name}: {cause}"),
    }
    let mut wrong = Vec::new();
    let mut used = vec![false; spared.len()];
    for (site, loss) in SITES.with_borrow(Clone::clone) {
        let file = site.file.rsplit('/').next().unwrap_or_default();
        let text = line_of(file, site.line);
        if !places.iter().any(|(f, begin)| *f == file && text.starts_with(begin)) {
            continue;
        }
        let excuse =
            spared.iter().position(|(f, t, l, _)| *f == file && *l == loss && text.starts_with(t));
        let what = format!("{name}: {file}:{} without {loss:?}: {text}", site.line);
        match (explore(&model, preemptions, Some((site, loss))), excuse) {
            (Err(cause), None) => println!("{what}: fails, as it must: {}", first_line(&cause)),
            (Ok(executions), Some(at)) => {
                println!("{what}: not needed here ({}): {executions} executions", spared[at].3);
                used[at] = true;
            }
            (Ok(executions), None) => {
                wrong.push(format!("{what}: not noticed in {executions} executions"));
            }
            (Err(cause), Some(_)) => {
                wrong.push(format!("{what}: listed as not needed, but: {}", first_line(&cause)));
            }
        }
    }
    for (excuse, _) in spared.iter().zip(used).filter(|(_, used)| !used) {
        wrong.push(format!("{name}: no such twin: {excuse:?}"));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

fn line_of(file: &str, line: u32) -> String {
    let text = match file {
        "arm.rs" => include_str!("../arm.rs"),
        "doorbell.rs" => include_str!("../doorbell.rs"),
        "early.rs" => include_str!("../early.rs"),
        "lock.rs" => include_str!("../lock.rs"),
        "ring.rs" => include_str!("../ring.rs"),
        _ => "",
    };
    text.lines().nth(line as usize - 1).unwrap_or_default().trim().to_owned()
}

/// A wake-up that is remembered until a thread takes it: an eventfd, or bytes on the carrier.
#[derive(Debug)]
struct Remembered {
    rings: loom::sync::Mutex<u32>,
    rung: loom::sync::Condvar,
}

impl Remembered {
    fn new() -> Self {
        Self { rings: loom::sync::Mutex::new(0), rung: loom::sync::Condvar::new() }
    }

    fn ring(&self) {
        let mut rings = self.rings.lock().expect("no poison");
        if !stand_in::is_ghost() {
            *rings += 1;
            self.rung.notify_all();
        }
    }

    /// Sleeps until it is woken. Loom reports a deadlock when no thread ever wakes it.
    fn sleep(&self) {
        let mut rings = self.rings.lock().expect("no poison");
        while *rings == 0 {
            rings = self.rung.wait(rings).expect("no poison");
        }
        *rings = 0;
    }
}
