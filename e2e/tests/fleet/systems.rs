//! The supported systems, one test each: the example policy becomes Ready on nodes like those of the system, and then
//! the check passes that users of the system make.

mod clouds;
mod distributions;
mod own_hardware;
mod system;
mod third_party;
