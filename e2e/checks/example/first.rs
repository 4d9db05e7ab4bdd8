use crate::second::inner::{self, Thing};

fn used(thing: Thing) -> inner::Thing {
    thing
}
