pub mod inner;

fn pair((one, other): (u8, u8)) -> u8 {
    inner::sum(one, other)
}

#[cfg(test)]
mod tests {
    use crate::first;
}
