//! What a file is, told by its first bytes and never by its name. Pure.

use image::ImageFormat;

use super::super::text::{self, Form};

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Shown in pages.
    Text,
    /// Shown as a picture when it can be decoded.
    Image(ImageFormat),
    /// Not shown: what it is, with its article.
    Other(&'static str),
}

/// Of a file that begins with `head`.
pub(super) fn kind(head: &[u8]) -> Kind {
    if let Some(format) = picture(head) {
        return Kind::Image(format);
    }
    let form = text::form(head);
    if let Some((_, what)) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Kind::Other(what);
    }
    match form {
        Form::Text { .. } => Kind::Text,
        Form::Wide("UTF-32LE" | "UTF-32BE") => Kind::Other("text in UTF-32"),
        Form::Wide("UTF-16BE") => Kind::Other("text in UTF-16BE"),
        Form::Wide(_) => Kind::Other("text in UTF-16LE"),
        Form::Binary => Kind::Other(binary(head)),
    }
}

fn picture(head: &[u8]) -> Option<ImageFormat> {
    match head {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(ImageFormat::Png),
        [0xff, 0xd8, 0xff, ..] => Some(ImageFormat::Jpeg),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(ImageFormat::Gif),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(ImageFormat::WebP),
        // Two letters alone could begin a text; the four reserved bytes are zero.
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Some(ImageFormat::Bmp),
        _ => None,
    }
}

/// Beginnings that no text has.
const MAGIC: &[(&[u8], &str)] = &[
    (b"%PDF-", "a PDF document"),
    (b"\x7fELF", "an ELF program or library"),
    (b"PK\x03\x04", "a zip archive (or a document or package made of one)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\xfd7zXZ\0", "an xz file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\0asm", "a WebAssembly module"),
    (b"\xca\xfe\xba\xbe", "a Java class or Mach-O universal binary"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O program or library"),
    (b"II*\0", "a TIFF image, which is not shown"),
    (b"MM\0*", "a TIFF image, which is not shown"),
    (b"\0\0\x01\0", "an ICO icon, which is not shown"),
    (b"8BPS", "a Photoshop image, which is not shown"),
    (b"wOFF", "a web font"),
    (b"wOF2", "a web font"),
    (b"\0\x01\0\0", "a TrueType font"),
    (b"!<arch>\n", "an ar archive (a static library or a Debian package)"),
];

/// Of bytes that are no text: those whose beginning a text could have too, and the rest.
fn binary(head: &[u8]) -> &'static str {
    match head {
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => "a bzip2 file",
        [b'M', b'Z', ..] => "a Windows program or library",
        [b'I', b'D', b'3', ..] | [0xff, 0xfb, ..] => "MP3 audio",
        [b'O', b'g', b'g', b'S', ..] => "Ogg audio or video",
        [b'f', b'L', b'a', b'C', ..] => "FLAC audio",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => "WAV audio",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', ..] => "AVI video",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', ..] => "an AVIF image, which is not shown",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h', b'e', ..] => "a HEIC image, which is not shown",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "MP4 or QuickTime video",
        [0x1a, 0x45, 0xdf, 0xa3, ..] => "Matroska or WebM video",
        _ if head.get(257..262) == Some(b"ustar") => "a tar archive",
        _ => "binary data of an unknown kind",
    }
}

/// What a text file is, when that differs from what a picture's name promises.
pub(super) fn text_in_disguise(head: &[u8]) -> &'static str {
    let head = String::from_utf8_lossy(&head[..head.len().min(text::HEAD)]).to_ascii_lowercase();
    if head.contains("<svg") {
        "an SVG drawing (XML text)"
    } else if head.contains("<html") || head.contains("<!doctype html") {
        "an HTML page"
    } else if head.starts_with("version https://git-lfs") {
        "a Git LFS pointer; the picture was not fetched (git lfs pull)"
    } else {
        "text"
    }
}

/// The picture that a file's name promises.
pub(super) fn promised(path: &std::path::Path) -> Option<ImageFormat> {
    ImageFormat::from_path(path).ok().filter(|format| {
        use ImageFormat::{Avif, Bmp, Gif, Ico, Jpeg, Png, Tiff, WebP};
        matches!(format, Png | Jpeg | Gif | WebP | Bmp | Tiff | Ico | Avif)
    })
}

/// A format's usual name.
pub(super) const fn format_name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Png => "PNG",
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Gif => "GIF",
        ImageFormat::WebP => "WebP",
        ImageFormat::Bmp => "BMP",
        ImageFormat::Tiff => "TIFF",
        ImageFormat::Ico => "ICO",
        ImageFormat::Avif => "AVIF",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn pictures_are_told_by_their_bytes() {
        assert_eq!(kind(b"\x89PNG\r\n\x1a\nrest"), Kind::Image(ImageFormat::Png));
        assert_eq!(kind(b"\xff\xd8\xff\xe0"), Kind::Image(ImageFormat::Jpeg));
        assert_eq!(kind(b"GIF89a\x01\0"), Kind::Image(ImageFormat::Gif));
        assert_eq!(kind(b"RIFF\x10\0\0\0WEBPVP8 "), Kind::Image(ImageFormat::WebP));
        assert_eq!(kind(b"BM\x36\0\x0c\0\0\0\0\0\x36"), Kind::Image(ImageFormat::Bmp));
        assert_eq!(kind(b"BM stands for bitmap\n"), Kind::Text);
    }

    #[test]
    fn other_files_are_named() {
        for (head, name) in [
            (&b"%PDF-1.7\n"[..], "PDF"),
            (b"PK\x03\x04\x14\0", "zip"),
            (b"\x7fELF\x02\x01\x01\0", "ELF"),
            (b"\x1f\x8b\x08\0", "gzip"),
            (b"MZ\x90\0\x03", "Windows"),
            (b"\0\0\0\x20ftypheic", "HEIC"),
            (b"\xff\xfea\0", "UTF-16LE"),
            (b"\xfe\xff\0a", "UTF-16BE"),
            (b"a\0b", "unknown"),
        ] {
            let Kind::Other(what) = kind(head) else { panic!("{head:?}") };
            assert!(what.contains(name), "{what}");
        }
        for text in [&b"MZ is a name\n"[..], b"ID3 tags\n", b"BZh9 \n", b"PK\n", b"", b"\xe9t\xe9\n", b"RIFF\n"] {
            assert_eq!(kind(text), Kind::Text, "{text:?}");
        }
        let mut tar = vec![b'a'; 100];
        tar.resize(257, 0);
        tar.extend(b"ustar\x0000");
        assert_eq!(kind(&tar), Kind::Other("a tar archive"));
    }

    #[test]
    fn names_promise_pictures_only_when_they_end_so() {
        assert_eq!(promised(Path::new("a/b.JPG")), Some(ImageFormat::Jpeg));
        assert_eq!(promised(Path::new("a.png.txt")), None);
        assert_eq!(promised(Path::new("png")), None);
        assert!(text_in_disguise(b"<svg xmlns=\"\"/>").contains("SVG"));
        assert!(text_in_disguise(b"version https://git-lfs.github.com/spec/v1\n").contains("LFS"));
    }
}
