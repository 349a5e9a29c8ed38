//! Integers as all formats on disk have them: signed, the highest byte first.

pub fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from(i32_at(bytes, at)) << 32 | i64::from(i32_at(bytes, at + 4) as u32)
}
