//! What was stored last for queues that were in use: a table of one size, however many queues there are.

use std::collections::hash_map::RandomState;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::queue_keys::{put_maximum_key, put_prefix, queue_in};
use crate::staging::{stage, Staged};

/// Slots that a key can be in: with twice as many slots as keys one in three hundred finds all of them in use.
const WAYS: usize = 8;
/// Of so many keys one may lie beside the slots.
const KEYS_PER_OVERFLOWN: usize = 128;
/// Numbers of 64 bits in a slot: two of its key's print, two of its value, and where the queue begins.
const SLOT: usize = 5;
pub const VALUE_SIZE: usize = 16;
/// Of a queue that never had a message: physical offset 0, queue offset -1.
const NOTHING_STORED: Known = Known { physical_offset: 0, last: -1, begin: UNKNOWN };
/// In place of where a queue begins, and one more.
const UNKNOWN: u64 = 0;
/// Where that is in a slot.
const BEGIN: usize = 4;

/// Maxima of queues (docs/formats/consume-queue.md) by their keys, and where the stored minima let queues begin. Of a key
/// only 128 bits of a keyed hash are kept, so that two of them are taken for one is less likely than that the memory errs.
#[pyclass(frozen)]
pub struct MaxOffsetTable {
    slots: Mutex<Slots>,
    sets: usize,
    overflown_maximum: usize,
    hashers: [RandomState; 2],
}

struct Slots {
    numbers: Vec<u64>,
    /// What found all of its slots in use.
    overflown: HashMap<Print, Known>,
    content: Content,
}

/// What the table has of all that is stored.
#[derive(PartialEq)]
enum Content {
    /// Some of it.
    Some,
    /// All that was put in since `begin_all`.
    Filling,
    All,
}

/// What a key is known by.
pub type Print = [u64; 2];

/// The keys of the first entry to read and of the one behind the last that there is, and how many to read.
type Place<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, i64);

/// What is known of a queue.
#[derive(Clone, Copy)]
struct Known {
    /// Of its last entry.
    physical_offset: i64,
    /// The queue offset of that.
    last: i64,
    /// `UNKNOWN`, or one more than the queue offset of the stored minimum, which is 0 where there is none.
    begin: u64,
}

/// Of a slot with nothing in it.
const EMPTY: Print = [0, 0];

#[pymethods]
impl MaxOffsetTable {
    /// For that many queues; memory is used as they come, up to 80 bytes for each.
    #[new]
    fn new(queues: usize) -> Self {
        let sets = (2 * queues).div_ceil(WAYS).next_power_of_two();
        let slots = Mutex::new(Slots::new(sets * WAYS * SLOT));
        let overflown_maximum = queues.div_ceil(KEYS_PER_OVERFLOWN);
        MaxOffsetTable { slots, sets, overflown_maximum, hashers: [RandomState::new(), RandomState::new()] }
    }

    /// Of each queue, a tuple of topic and number: how keys of its units begin, its maximum's key, what is stored under
    /// that where it is known, and where the queue begins where that is. None when one of them can have no keys.
    fn find<'py>(&self, py: Python<'py>, queues: &Bound<'py, PyList>) -> PyResult<Option<Bound<'py, PyList>>> {
        let slots = self.locked();
        let found = PyList::empty(py);
        let mut key = Vec::with_capacity(64);
        for queue in queues {
            let queue = queue.cast_into::<PyTuple>()?;
            let Some((topic, number)) = queue_in(&queue)? else { return Ok(None) };
            put_prefix(&mut key, topic, number);
            let prefix = PyBytes::new(py, &key);
            put_maximum_key(&mut key, topic, number);
            let print = self.print_of(&key);
            let known = self.known_in(&slots, print);
            let maximum = known.map(|known| PyBytes::new(py, &known.maximum()));
            found.append((prefix, PyBytes::new(py, &key), maximum, known.and_then(|known| known.begin())))?;
        }
        Ok(Some(found))
    }

    /// Of each queue the offset behind its last entry, where it is known. None when one of them can have no keys.
    fn ends(&self, queues: &Bound<'_, PyList>) -> PyResult<Option<Vec<Option<i64>>>> {
        let slots = self.locked();
        let mut key = Vec::with_capacity(64);
        let mut prints = Vec::with_capacity(queues.len());
        for queue in queues {
            let queue = queue.cast_into::<PyTuple>()?;
            let Some((topic, number)) = queue_in(&queue)? else { return Ok(None) };
            put_maximum_key(&mut key, topic, number);
            prints.push(self.print_of(&key));
        }
        // with nothing between them the processor fetches several slots at once
        let ends = prints.into_iter().map(|print| self.last_in(&slots, print)?.checked_add(1));
        Ok(Some(ends.collect()))
    }

    /// See `store/native.py`.
    fn place<'py>(
        &self,
        py: Python<'py>,
        queue: &Bound<'py, PyTuple>,
        start: &Bound<'py, PyAny>,
        limit: i64,
        minimum: i64,
    ) -> PyResult<Option<Place<'py>>> {
        let (Some((topic, number)), Ok(start)) = (queue_in(queue)?, start.extract::<i64>()) else { return Ok(None) };
        let mut key = Vec::with_capacity(64);
        put_maximum_key(&mut key, topic, number);
        let print = self.print_of(&key);
        let Some(known) = self.known_in(&self.locked(), print) else { return Ok(None) };
        let (Some(begin), Some(end)) = (known.begin(), known.last.checked_add(1)) else { return Ok(None) };
        let begin = begin.max(start);
        if known.physical_offset < minimum || end <= begin || limit <= 0 {
            return Ok(Some((PyBytes::new(py, b""), PyBytes::new(py, b""), 0)));
        }
        put_prefix(&mut key, topic, number);
        let prefix = key.len();
        let mut key_of = |offset: i64| {
            key.truncate(prefix);
            key.extend_from_slice(&offset.to_be_bytes());
            PyBytes::new(py, &key)
        };
        Ok(Some((key_of(begin), key_of(end), limit.min(end - begin))))
    }

    /// See `store/native.py`.
    fn stage<'py>(&self, py: Python<'py>, requests: &Bound<'py, PyList>) -> PyResult<Option<Staged<'py>>> {
        let slots = self.locked();
        stage(py, requests, |key| self.print_of(key), |print| self.last_in(&slots, print))
    }

    /// What is stored under the keys now.
    fn put_all(&self, pairs: &Bound<'_, PyList>) -> PyResult<()> {
        let mut found = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let pair = pair.cast_into::<PyTuple>()?;
            let (key, value) = (pair.get_borrowed_item(0)?, pair.get_borrowed_item(1)?);
            let (key, value) = (key.cast::<PyBytes>()?, value.cast::<PyBytes>()?);
            let Ok(value) = <[u8; VALUE_SIZE]>::try_from(value.as_bytes()) else {
                return Err(PyValueError::new_err("a maximum has 16 bytes"));
            };
            found.push((self.print_of(key.as_bytes()), i128::from_be_bytes(value)));
        }
        let mut slots = self.locked();
        for (print, maximum) in found {
            self.put(&mut slots, print, ((maximum >> 64) as i64, maximum as i64));
        }
        Ok(())
    }

    /// Where queues begin whose maxima are here, by the keys of these.
    fn put_min_offsets(&self, begins: Vec<(Bound<'_, PyBytes>, i64)>) {
        let mut slots = self.locked();
        for (key, begin) in begins {
            let print = self.print_of(key.as_bytes());
            let begin = u64::try_from(begin).map_or(UNKNOWN, |begin| begin + 1);
            let set = self.set_of_mut(&mut slots, print);
            if let Some(way) = way_of(set, print) {
                set[way * SLOT + BEGIN] = begin;
            } else if let Some(known) = slots.overflown.get_mut(&print) {
                known.begin = begin;
            }
        }
    }

    /// All that is stored is about to be put in, until `end_all`; what changes meanwhile is put in, too.
    fn begin_all(&self) {
        self.locked().content = Content::Filling;
    }

    /// From now on nothing is stored under a key that is not found, until something has no room.
    fn end_all(&self) {
        let mut slots = self.locked();
        if slots.content == Content::Filling {
            slots.content = Content::All;
        }
    }

    /// Nothing is stored any more under the maximum's key of a queue.
    fn remove(&self, key: &[u8]) {
        let print = self.print_of(key);
        self.take_out(&mut self.locked(), print);
    }

    fn clear(&self) {
        let mut slots = self.locked();
        *slots = Slots::new(slots.numbers.len());
    }
}

impl MaxOffsetTable {
    /// What is stored, as far as it is known.
    fn known_in(&self, slots: &Slots, print: Print) -> Option<Known> {
        let found = find_in(self.set_of(slots, print), print).or_else(|| slots.overflown.get(&print).copied());
        found.or((slots.content == Content::All).then_some(NOTHING_STORED))
    }

    /// Where the key is, else where nothing is, else beside the slots, else in place of any other.
    fn put(&self, slots: &mut Slots, print: Print, (physical_offset, last): (i64, i64)) {
        let new = Known { physical_offset, last, begin: UNKNOWN };
        let set = self.set_of_mut(slots, print);
        if let Some(way) = way_of(set, print) {
            put_at(set, way, print, Known { begin: set[way * SLOT + BEGIN], ..new });
        } else if let Some(known) = slots.overflown.get_mut(&print) {
            *known = Known { begin: known.begin, ..new };
        } else if let Some(way) = way_of(self.set_of(slots, print), EMPTY) {
            put_at(self.set_of_mut(slots, print), way, print, new);
        } else if slots.overflown.len() < self.overflown_maximum {
            slots.overflown.insert(print, new);
        } else {
            put_at(self.set_of_mut(slots, print), (print[0] >> 32) as usize % WAYS, print, new);
            slots.content = Content::Some;
        }
    }

    /// The queue offset of the last entry.
    fn last_in(&self, slots: &Slots, print: Print) -> Option<i64> {
        self.known_in(slots, print).map(|known| known.last)
    }

    fn take_out(&self, slots: &mut Slots, print: Print) {
        let set = self.set_of_mut(slots, print);
        if let Some(way) = way_of(set, print) {
            put_at(set, way, EMPTY, NOTHING_STORED);
        } else {
            slots.overflown.remove(&print);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print_of(&self, key: &[u8]) -> Print {
        let [first, second] = self.hashers.each_ref().map(|hasher| {
            let mut hasher = hasher.build_hasher();
            hasher.write(key);
            hasher.finish()
        });
        [first | 1, second] // never `EMPTY`
    }

    fn begin_of(&self, print: Print) -> usize {
        (print[1] as usize & (self.sets - 1)) * WAYS * SLOT
    }

    fn set_of<'a>(&self, slots: &'a Slots, print: Print) -> &'a [u64] {
        &slots.numbers[self.begin_of(print)..][..WAYS * SLOT]
    }

    fn set_of_mut<'a>(&self, slots: &'a mut Slots, print: Print) -> &'a mut [u64] {
        &mut slots.numbers[self.begin_of(print)..][..WAYS * SLOT]
    }
}

impl Known {
    /// As it is stored.
    fn maximum(&self) -> [u8; VALUE_SIZE] {
        (i128::from(self.physical_offset) << 64 | i128::from(self.last as u64)).to_be_bytes()
    }

    fn begin(&self) -> Option<i64> {
        (self.begin != UNKNOWN).then(|| (self.begin - 1) as i64)
    }
}

impl Slots {
    fn new(numbers: usize) -> Self {
        // zeros of the operating system: a page that no queue has come to takes no memory
        Slots { numbers: vec![0; numbers], overflown: HashMap::new(), content: Content::Some }
    }
}

fn way_of(set: &[u64], print: Print) -> Option<usize> {
    set.chunks_exact(SLOT).position(|slot| slot[..2] == print)
}

fn find_in(set: &[u64], print: Print) -> Option<Known> {
    let slot = &set[way_of(set, print)? * SLOT..][..SLOT];
    Some(Known { physical_offset: slot[2] as i64, last: slot[3] as i64, begin: slot[BEGIN] })
}

fn put_at(set: &mut [u64], way: usize, print: Print, known: Known) {
    let [first, second] = print;
    set[way * SLOT..][..SLOT].copy_from_slice(&[
        first,
        second,
        known.physical_offset as u64,
        known.last as u64,
        known.begin,
    ]);
}
