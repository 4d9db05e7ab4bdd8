mod first;
mod second;
