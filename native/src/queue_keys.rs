//! Keys of queues in RocksDB, as `store.consumequeue.rocks_layout.keys_of` makes them.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

const TOPIC_LENGTH_MAXIMUM: usize = 255;
/// No topic has this name; Python says so.
const CHECKPOINT_TOPIC: &str = "CHECKPOINT_TOPIC";
const SEPARATOR: u8 = 1;

/// Topic and number of a tuple that begins with them. None when such a queue can have no keys.
pub fn queue_in<'a>(tuple: &'a Bound<'_, PyTuple>) -> PyResult<Option<(&'a str, i32)>> {
    let Some(topic) = name_in(tuple)? else { return Ok(None) };
    Ok(Some((topic, tuple.get_borrowed_item(1)?.extract()?)))
}

/// The name that a tuple begins with. None when a queue of that name can have no keys.
pub fn name_in<'a>(tuple: &'a Bound<'_, PyTuple>) -> PyResult<Option<&'a str>> {
    let name = tuple.get_borrowed_item(0)?.extract::<&str>();
    Ok(name.ok().filter(|name| name.len() <= TOPIC_LENGTH_MAXIMUM && *name != CHECKPOINT_TOPIC))
}

/// How keys of its units begin.
pub fn put_prefix(key: &mut Vec<u8>, topic: &str, number: i32) {
    put_topic(key, topic);
    key.extend_from_slice(&number.to_be_bytes());
    key.push(SEPARATOR);
}

pub fn put_maximum_key(key: &mut Vec<u8>, topic: &str, number: i32) {
    put_topic(key, topic);
    key.extend_from_slice(b"max");
    key.push(SEPARATOR);
    key.extend_from_slice(&number.to_be_bytes());
}

fn put_topic(key: &mut Vec<u8>, topic: &str) {
    key.clear();
    key.extend_from_slice(&(topic.len() as i32).to_be_bytes());
    key.push(SEPARATOR);
    key.extend_from_slice(topic.as_bytes());
    key.push(SEPARATOR);
}
