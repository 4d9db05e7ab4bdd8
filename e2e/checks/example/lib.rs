mod first;
mod second;
mod third;
