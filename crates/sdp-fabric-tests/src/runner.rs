//! Runs one test on a harness, or skips it for a named reason; counts the skipped ones.

use crate::{Feature, Harness, message::Random};

/// Environment variable that replaces [`SEED`].
pub const SEED_VARIABLE: &str = "SDP_CONFORMANCE_SEED";
/// Seed of a run that names none.
pub const SEED: u64 = 20_261_121;

/// One rule of the contract.
#[derive(Debug)]
pub struct Test<H> {
    /// Part and name.
    pub name: &'static str,
    /// The features that a fabric must have for it.
    pub needs: &'static [Feature],
    /// The test; panics where the rule is broken.
    pub run: fn(&mut H, &mut Random),
}

/// Runs a test, unless the harness lacks a feature it needs.
pub fn run<H: Harness>(test: &Test<H>) {
    let seed = seed();
    let mut harness = H::new(seed);
    if let Some(reason) = missing(&harness, test) {
        println!("skipped {}: {reason}", test.name);
        return;
    }
    // Shown by the test runner when the test fails, and only then.
    println!("{} with {SEED_VARIABLE}={seed}", test.name);
    (test.run)(&mut harness, &mut Random::new(seed));
}

/// Checks that exactly `declared` tests are skipped, and prints which and why.
pub fn account<H: Harness>(declared: usize) {
    let harness = H::new(seed());
    let tests = tests::<H>();
    let skipped: Vec<_> =
        tests.iter().filter_map(|test| Some((test.name, missing(&harness, test)?))).collect();
    println!("{} tests, {} skipped", tests.len(), skipped.len());
    for (name, reason) in &skipped {
        println!("skipped {name}: {reason}");
    }
    assert_eq!(skipped.len(), declared, "tests skipped, and declared as skipped");
}

fn missing<H: Harness>(harness: &H, test: &Test<H>) -> Option<&'static str> {
    test.needs.iter().find_map(|feature| match feature {
        Feature::NoOneSided => match harness.missing(Feature::OneSided) {
            Some(_) => None,
            None => Some("one-sided work is supported"),
        },
        feature => harness.missing(*feature),
    })
}

fn seed() -> u64 {
    match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().expect("seed is a number"),
        Err(_) => SEED,
    }
}

fn tests<H: Harness>() -> Vec<Test<H>> {
    macro_rules! table {
        ($harness:ident; $($part:ident :: $test:ident needs [$($feature:ident),*],)*) => {
            vec![$(Test {
                name: concat!(stringify!($part), "::", stringify!($test)),
                needs: &[$(Feature::$feature),*],
                run: crate::suite::$part::$test::<$harness>,
            }),*]
        };
    }
    crate::for_each_test!([table], H)
}
