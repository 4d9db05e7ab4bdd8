//! Reads the dynamic linker's cache, `/etc/ld.so.cache`: which libraries a root has, and where. Pure: works on bytes.
//!
//! The layout is that of glibc's `dl-cache.h`: the format `glibc-ld.so.cache1.1` of glibc 2.2 and later, either alone
//! or after the older format, which ldconfig prepended up to glibc 2.31. All numbers are little-endian, as on every
//! processor that the probe supports.

/// The first bytes of the file, including its version.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// The first bytes of the older format.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
/// The sizes of the old format's header and entries.
const OLD_SIZES: (usize, usize) = (16, 12);
/// The sizes of the header and of an entry: flags, key, value, OS version, hardware capabilities.
const SIZES: (usize, usize) = (48, 24);
/// The most entries that are read; a desktop system has a few thousand.
const MAX_ENTRIES: usize = 65_536;
/// The longest string that is read.
const LONGEST: usize = 4096;
/// The part of an entry's flags that names the library's architecture, and its values for x86-64 and arm64. The probe
/// cannot load 32-bit libraries.
const KIND: u32 = 0xff00;
const KINDS: [u32; 2] = [0x0300, 0x0a00];

/// Returns the paths of the 64-bit libraries whose names start with `prefix`, in the order of the cache. Damaged parts
/// are skipped: the cache is only one of the sources for library locations.
pub fn paths<'c>(cache: &'c [u8], prefix: &str) -> Vec<&'c str> {
    let Some(cache) = newer(cache) else { return Vec::new() };
    let count = number(cache, MAGIC.len()).unwrap_or_default().min(MAX_ENTRIES);
    let entries = (0..count).map(|index| SIZES.0 + index * SIZES.1);
    let path = |at: usize| {
        let flags = u32::try_from(number(cache, at)?).ok()?;
        let name = text(cache, number(cache, at + 4)?)?;
        let wanted = KINDS.contains(&(flags & KIND)) && name.starts_with(prefix);
        text(cache, number(cache, at + 8)?).filter(|path| wanted && path.starts_with('/'))
    };
    entries.filter_map(path).collect()
}

/// Returns the part in the newer format; offsets of strings count from its start.
fn newer(cache: &[u8]) -> Option<&[u8]> {
    if cache.starts_with(MAGIC) {
        return Some(cache);
    }
    cache.strip_prefix(OLD_MAGIC)?;
    let entries = number(cache, OLD_SIZES.0 - 4)?.checked_mul(OLD_SIZES.1)?;
    let begin = entries.checked_add(OLD_SIZES.0)?.checked_next_multiple_of(8)?;
    cache.get(begin..).filter(|newer| newer.starts_with(MAGIC))
}

fn number(cache: &[u8], at: usize) -> Option<usize> {
    let bytes = cache.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

/// Returns a string that ends with a zero byte.
fn text(cache: &[u8], at: usize) -> Option<&str> {
    let rest = cache.get(at..)?;
    let end = rest.iter().take(LONGEST).position(|byte| *byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds a cache of the newer format with these libraries: flags, name, path.
    fn cache(libraries: &[(u32, &str, &str)]) -> Vec<u8> {
        let (mut entries, mut strings) = (Vec::new(), Vec::new());
        let begin = SIZES.0 + libraries.len() * SIZES.1;
        let mut string = |text: &str| {
            let at = u32::try_from(begin + strings.len()).unwrap();
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at.to_le_bytes()
        };
        for (flags, name, path) in libraries {
            entries.extend_from_slice(&flags.to_le_bytes());
            entries.extend_from_slice(&string(name));
            entries.extend_from_slice(&string(path));
            entries.extend_from_slice(&[0; 12]);
        }
        let mut cache = MAGIC.to_vec();
        cache.extend_from_slice(&u32::try_from(libraries.len()).unwrap().to_le_bytes());
        cache.extend_from_slice(&u32::try_from(strings.len()).unwrap().to_le_bytes());
        cache.resize(SIZES.0, 0);
        cache.extend(entries);
        cache.extend(strings);
        cache
    }

    const X86_64: u32 = 0x0303;

    #[test]
    fn libraries_of_64_bits_are_found_by_the_prefix_of_their_names() {
        let nvml = "libnvidia-ml.so.1";
        let libraries = [
            (X86_64, "libc.so.6", "/usr/lib64/libc.so.6"),
            (X86_64, nvml, "/usr/lib64/nvidia/libnvidia-ml.so.1"),
            (0x0003, nvml, "/usr/lib/nvidia/libnvidia-ml.so.1"),
            (0x0a03, nvml, "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"),
            (X86_64, nvml, "relative/libnvidia-ml.so.1"),
        ];
        let found = ["/usr/lib64/nvidia/libnvidia-ml.so.1", "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"];
        let newer = cache(&libraries);
        assert_eq!(paths(&newer, "libnvidia-ml.so."), found);
        // The same after the older format, with one entry and with two: the newer one starts at a multiple of eight.
        for entries in [1_u32, 2] {
            let mut both = OLD_MAGIC.to_vec();
            both.push(0);
            both.extend_from_slice(&entries.to_le_bytes());
            both.resize((16 + 12 * entries as usize).next_multiple_of(8), 0);
            both.extend_from_slice(&newer);
            assert_eq!(paths(&both, "libnvidia-ml.so."), found, "{entries}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_cache_or_is_cut_off_lists_nothing() {
        let whole = cache(&[(X86_64, "libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1")]);
        assert_eq!(paths(&whole, "libnvidia-ml.so.").len(), 1);
        for end in 0..whole.len() {
            assert!(paths(&whole[..end], "libnvidia-ml.so.").is_empty(), "the first {end} bytes");
        }
        assert!(paths(b"ld.so-1.7.0\0\xff\xff\xff\xff", "lib").is_empty());
    }

    proptest! {
        #[test]
        fn no_input_makes_the_probe_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            begin in prop::sample::select(vec![&b""[..], MAGIC, OLD_MAGIC]),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            let _ = paths(&[begin, &bytes].concat(), "lib");
            let mut damaged = cache(&[(X86_64, "liba.so.1", "/a"), (X86_64, "libb.so.1", "/b")]);
            for (at, byte) in flips {
                let at = at.index(damaged.len());
                damaged[at] = byte;
            }
            let _ = paths(&damaged, "lib");
        }
    }
}
