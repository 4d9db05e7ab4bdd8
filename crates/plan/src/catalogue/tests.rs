mod data;
mod driver;
mod known;

use crate::catalogue::{Accelerator, Catalogue};

fn catalogue() -> Catalogue {
    Catalogue::builtin().unwrap()
}

fn models<'a>(catalogue: &'a Catalogue, names: &[&str]) -> Vec<&'a Accelerator> {
    names.iter().map(|name| catalogue.model(name).unwrap()).collect()
}
