//! Receipt handles: texts that name one delivery each, and prove that this store's broker gave it out.

use blake2::digest::consts::U8;
use blake2::digest::{KeyInit, Mac};
use blake2::Blake2bMac;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

const VERSION: u8 = 2;
const SIZE: usize = 37;
const TEXT_SIZE: usize = 52;
/// Where the fields of a handle end, and their proof begins.
const FIELDS_END: usize = 29;
const PURPOSE: &[u8] = b"r";
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

type Proof = Blake2bMac<U8>;

/// Queue number, queue offset, delivery id, expires at ms.
pub type Delivery = (u32, i64, i64, i64);

/// As `server.delivery.handles.encode_all`, without lite topics.
#[pyfunction]
pub fn receipt_handles(
    key: &[u8],
    whose: &str,
    queue_number: u32,
    deliveries: Vec<(i64, i64)>,
    expires_at_ms: i64,
) -> PyResult<Vec<String>> {
    let begun = begun(key, &[whose.as_bytes()]).ok_or_else(|| PyValueError::new_err("the key is too long"))?;
    let mut raw = [0; SIZE];
    raw[0] = VERSION;
    raw[1..5].copy_from_slice(&queue_number.to_be_bytes());
    raw[21..FIELDS_END].copy_from_slice(&expires_at_ms.to_be_bytes());
    let one = |(queue_offset, delivery_id): (i64, i64)| {
        raw[5..13].copy_from_slice(&queue_offset.to_be_bytes());
        raw[13..21].copy_from_slice(&delivery_id.to_be_bytes());
        let mut proof = begun.clone();
        proof.update(&raw[..FIELDS_END]);
        raw[FIELDS_END..].copy_from_slice(&proof.finalize().into_bytes());
        text_of(&raw)
    };
    Ok(deliveries.into_iter().map(one).collect())
}

/// As `server.delivery.handles.ReceiptHandle.decode`, of one without a lite topic.
pub fn read_handle(text: &str, key: &[u8], group: &str, topic: &str) -> Option<Delivery> {
    let raw = raw_of(text)?;
    let mut proof = begun(key, &[group.as_bytes(), b"\0", topic.as_bytes(), b"\0"])?;
    proof.update(&raw[..FIELDS_END]);
    if raw[0] != VERSION || proof.verify_slice(&raw[FIELDS_END..]).is_err() {
        return None;
    }
    Some((
        u32::from_be_bytes(part(&raw, 1)),
        i64::from_be_bytes(part(&raw, 5)),
        i64::from_be_bytes(part(&raw, 13)),
        i64::from_be_bytes(part(&raw, 21)),
    ))
}

fn begun(key: &[u8], whose: &[&[u8]]) -> Option<Proof> {
    let mut proof = <Proof as KeyInit>::new_from_slice(key).ok()?;
    proof.update(PURPOSE);
    for part in whose {
        proof.update(part);
    }
    Some(proof)
}

fn text_of(raw: &[u8; SIZE]) -> String {
    let mut text = String::with_capacity(TEXT_SIZE);
    let (mut bits, mut held) = (0u32, 0);
    for byte in raw {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 6 {
            held -= 6;
            text.push(char::from(DIGITS[(bits >> held & 63) as usize]));
        }
    }
    text.push(char::from(DIGITS[(bits << (6 - held) & 63) as usize]));
    text.push_str("==");
    text
}

fn raw_of(text: &str) -> Option<[u8; SIZE]> {
    if text.len() != TEXT_SIZE || !text.ends_with("==") {
        return None;
    }
    let mut raw = [0; SIZE];
    let (mut bits, mut held, mut at) = (0u32, 0, 0);
    for byte in text.bytes().take(TEXT_SIZE - 2) {
        bits = bits << 6 | sextet(byte)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            raw[at] = (bits >> held) as u8;
            at += 1;
        }
    }
    Some(raw)
}

fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

fn part<const LENGTH: usize>(raw: &[u8; SIZE], at: usize) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes.copy_from_slice(&raw[at..at + LENGTH]);
    bytes
}
