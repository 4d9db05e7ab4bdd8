fn text() -> String {
    format!("{:?}", [crate::first::used as usize])
}
