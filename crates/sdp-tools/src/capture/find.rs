//! Finds connections and their segments: the pages of processes say which connections there are,
//! their memory maps which segments, and each segment which descriptors use it.

use std::collections::{BTreeSet, HashMap, HashSet};

use sdp_shm::layout::{MAGIC, VERSION, is_ring_size, segment_bytes};
use sdp_stats::reader::RowView;
use sdp_stats::{Endpoint, Fabric, Role};

use super::filter::Filter;
use super::follow::{Control, Found};
use super::memory::{Mapping, Segment, mappings};
use crate::procs::{self, Process};

/// What tells connections apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Its segment.
    inode: u64,
    /// By side: address and port.
    ends: [([u8; 16], u16); 2],
}

/// Outcome of one search.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Connections that were not there before.
    pub(super) new: Vec<(Key, Found)>,
    /// Connections that are not there any more.
    pub(super) gone: Vec<Key>,
}

/// Searches.
pub(super) struct Finder {
    only: Option<u32>,
    filter: Filter,
    /// Connections that are followed, and where their segments are.
    known: HashMap<Key, Vec<(u32, Mapping)>>,
    /// Processes whose memory could not be read.
    denied: BTreeSet<u32>,
    /// Connections to other hosts, by process and carrier.
    elsewhere: HashSet<(u32, u64)>,
    is_over: bool,
}

/// An end of a connection: its process, and its row there.
type End<'a> = (&'a Process, &'a RowView);

impl Finder {
    /// For all processes, or one.
    pub(super) fn new(only: Option<u32>, filter: Filter) -> Self {
        Self {
            only,
            filter,
            known: HashMap::new(),
            denied: BTreeSet::new(),
            elsewhere: HashSet::new(),
            is_over: false,
        }
    }

    /// Whether the one process that is looked at has gone.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Processes whose memory could not be read.
    pub(super) fn denied(&self) -> &BTreeSet<u32> {
        &self.denied
    }

    /// How many connections to other hosts there were.
    pub(super) fn elsewhere(&self) -> usize {
        self.elsewhere.len()
    }

    /// Searches once.
    pub(super) fn look(&mut self) -> Look {
        let processes = procs::find(None);
        self.is_over = self.only.is_some_and(|pid| !processes.iter().any(|p| p.pid == pid));
        let mut ends: HashMap<(Endpoint, Endpoint), Vec<End<'_>>> = HashMap::new();
        for process in &processes {
            for row in &process.view.rows {
                if row.role != Role::Listener as u8 && row.local != Endpoint::NONE {
                    ends.entry((row.local, row.remote)).or_default().push((process, row));
                }
            }
        }
        let mut maps: HashMap<u32, Vec<Mapping>> = HashMap::new();
        let (mut seen, mut look) = (HashSet::new(), Look::default());
        let only = self.only;
        for process in processes.iter().filter(|p| only.is_none_or(|pid| p.pid == pid)) {
            for row in &process.view.rows {
                let is_met = |fabric: Fabric| {
                    let by = |half: &sdp_stats::reader::HalfView| half.fabric == fabric as u8;
                    row.halves.iter().any(by)
                };
                if row.role == Role::Listener as u8 || !self.filter.has([row.local, row.remote]) {
                    continue;
                }
                if is_met(Fabric::Verbs) && self.elsewhere.len() < 1 << 16 {
                    self.elsewhere.insert((process.pid, row.carrier));
                }
                let peers = ends.get(&(row.remote, row.local)).map_or(&[][..], Vec::as_slice);
                let found = self.find((process, row), peers, &mut maps);
                let Some((key, places)) = found else { continue };
                if seen.insert(key) && !self.known.contains_key(&key) {
                    if let Some(found) = open(&places, key) {
                        look.new.push((key, found));
                        self.known.insert(key, places);
                    } else {
                        self.denied.extend(places.iter().map(|(pid, _)| pid));
                    }
                }
            }
        }
        let gone = self.known.extract_if(|key, _| !seen.contains(key));
        look.gone = gone.map(|(key, _)| key).collect();
        look
    }

    /// The segment of a connection end, and where it is mapped.
    fn find(
        &mut self,
        (process, row): End<'_>,
        peers: &[End<'_>],
        maps: &mut HashMap<u32, Vec<Mapping>>,
    ) -> Option<(Key, Vec<(u32, Mapping)>)> {
        let mut of = |pid: u32| maps.entry(pid).or_insert_with(|| mappings(pid)).clone();
        let own = of(process.pid);
        let (local, remote) = (end_of(row.local), end_of(row.remote));
        let side = usize::from(local > remote);
        let ends = if side == 0 { [local, remote] } else { [remote, local] };
        // A known connection is looked at no more closely while its segment is mapped there.
        for mapping in &own {
            let key = Key { inode: mapping.inode, ends };
            if let Some(places) = self.known.get(&key)
                && places.contains(&(process.pid, *mapping))
            {
                return Some((key, places.clone()));
            }
        }
        let is_mine = |control: &Control, side: usize, row: &RowView| {
            control.uses(side, u32::try_from(row.fd).unwrap_or(u32::MAX))
        };
        let mut candidates = own.iter().filter_map(|mapping| {
            let mut places = vec![(process.pid, *mapping)];
            let segment = Segment::open(&places)?;
            let control = Control::read(&segment)?;
            is_mine(&control, side, row).then_some(())?;
            let mut has_peer = peers.is_empty();
            for (peer, row) in peers {
                let there = of(peer.pid).into_iter().find(|m| m.inode == mapping.inode);
                let Some(there) = there.filter(|_| is_mine(&control, 1 - side, row)) else {
                    continue;
                };
                has_peer = true;
                if peer.pid != process.pid {
                    places.push((peer.pid, there));
                }
            }
            has_peer.then_some(())?;
            Some((Key { inode: mapping.inode, ends }, places))
        });
        let found = candidates.next();
        // Words of an earlier connection may be in another one.
        let is_only_one = candidates.next().is_none();
        if found.is_none() && !own.is_empty() && row.has_live_lane() {
            let is_denied = |m: &Mapping| Segment::open(&[(process.pid, *m)]).is_none();
            if own.iter().all(is_denied) {
                self.denied.insert(process.pid);
            }
        }
        found.filter(|_| is_only_one)
    }
}

fn end_of(end: Endpoint) -> ([u8; 16], u16) {
    (end.addr, end.port)
}

/// Opens a segment, which has to be as its control page says.
fn open(places: &[(u32, Mapping)], key: Key) -> Option<Found> {
    let segment = Segment::open(places)?;
    let control = Control::read(&segment)?;
    let ring_bytes = control.ring_bytes();
    let is_right = control.magic() == MAGIC
        && control.version() == VERSION
        && is_ring_size(ring_bytes)
        && segment_bytes(ring_bytes) as u64 == segment.len();
    let ends = key.ends.map(|(addr, port)| Endpoint { addr, port });
    is_right.then_some(Found { segment, ring_bytes, ends })
}
