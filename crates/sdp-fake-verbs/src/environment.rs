//! A process that a test has started: the settings in its environment.

use core::ffi::CStr;

use crate::{Network, Step};

/// The network's file.
const NETWORK: &str = "SDP_FAKE_NETWORK=";
/// Steps that fail in this process: `STEP:FIRST:COUNT:NUMBER`, several behind commas.
const FAIL: &str = "SDP_FAKE_FAIL=";
/// A byte of the private data with which this process asks and answers, `OFFSET:VALUE`: as a liar
/// would send it.
const SAYS: &str = "SDP_FAKE_SAYS=";

/// Heeds one entry of the environment. Entries other than the three have no effect; the network
/// comes first.
pub fn heed(entry: &CStr) {
    let Ok(text) = entry.to_str() else { return };
    if text.starts_with(NETWORK) {
        // The path is the rest, which ends where the entry does.
        let path = entry.to_bytes_with_nul().get(NETWORK.len()..);
        let path = path.and_then(|path| CStr::from_bytes_with_nul(path).ok());
        let _ = path.map(Network::shared);
    } else if let Some(list) = text.strip_prefix(FAIL) {
        list.split(',').for_each(fail);
    } else if let Some((offset, value)) = text.strip_prefix(SAYS).and_then(|t| t.split_once(':'))
        && let (Ok(offset), Ok(value)) = (offset.parse::<u8>(), value.parse::<u8>())
    {
        crate::manager::say(offset, value);
    }
}

fn fail(one: &str) {
    let mut words = one.split(':');
    let step = words.next().and_then(Step::named);
    let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
    if let (Some(step), Some(first), Some(count), Some(number)) =
        (step, number(), number(), number())
    {
        Network::fail_here(step, first, count, number as i32);
    }
}
