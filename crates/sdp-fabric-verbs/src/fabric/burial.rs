//! Connections that have failed end, and leave their places when nothing of theirs is under way.

use core::sync::atomic::Ordering;

use super::{Stage, TAKEN, VerbsFabric};

impl VerbsFabric {
    /// Failed ones begin to end; ended ones that are not used leave their place.
    pub(super) fn look_after_all(&mut self) -> bool {
        let mut had_some = false;
        for index in 0..self.core.conns.len() {
            let Some((id, stage)) = self.at(index) else { continue };
            let core = self.core.clone();
            if let (Stage::Connected | Stage::Accepted, Some(why)) =
                (stage, core.place(index).error())
            {
                self.end(id, why);
                self.tell_end(id);
                had_some = true;
            }
            had_some |= self.bury_one(index) == Some(true);
        }
        had_some
    }

    /// An ended one that is not used leaves its place, if its work has come back. `None`: it is
    /// none.
    fn bury_one(&mut self, index: usize) -> Option<bool> {
        let (id, stage) = self.at(index)?;
        let conn = self.core.place(index);
        let is_unused = conn.halves.load(Ordering::Acquire) & !TAKEN == 0;
        if stage != Stage::Ending || !is_unused {
            return None;
        }
        let is_drained = conn.is_drained.load(Ordering::Acquire);
        if is_drained {
            self.core.drain();
            self.forget(id);
        }
        Some(is_drained)
    }

    /// Connections that have ended and are not used leave their places, after [`Core::drain`].
    /// False: work of one has not come back yet.
    pub fn bury(&mut self) -> bool {
        (0..self.core.conns.len()).fold(true, |all, at| (self.bury_one(at) != Some(false)) & all)
    }
}
