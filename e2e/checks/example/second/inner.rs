pub struct Thing;

pub fn sum(one: u8, other: u8) -> u8 {
    super::super::first::add(one, other)
}
