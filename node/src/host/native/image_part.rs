//! Making a picture that can be shown of an image file's bytes: decoded whole under limits, made smaller where needed.
//! Pure but for the memory and time it takes; callers run it off the async threads.
//!
//! What is given back is a picture for sure. What cannot be decoded is an error that says so, never a broken picture.

use std::io::Cursor;

use image::{
    AnimationDecoder, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, Rgb, RgbImage,
    codecs::{gif::GifDecoder, jpeg::JpegEncoder, png::PngDecoder, webp::WebPDecoder},
};

/// Most pixels on a side that are shown; models see no more of a picture than that.
pub const SIDE: u32 = 2_000;

/// Most bytes of a shown picture: 6 MiB in base64, with room for the rest of an answer.
pub const ENCODED: usize = 4_718_592;

/// Most bytes of an image file that are looked at.
pub const FILE: u64 = 64 * 1024 * 1024;

/// Most pixels on a side that are decoded.
const DECODED_SIDE: u32 = 16_384;

/// Most bytes that the pixels may take.
const DECODED: u64 = 256 * 1024 * 1024;

/// A picture to show.
#[derive(Debug, PartialEq, Eq)]
pub struct Picture {
    /// The type of [`Picture::bytes`].
    pub mime: &'static str,
    /// What to show.
    pub bytes: Vec<u8>,
    /// Width and height of the file's own picture.
    pub size: (u32, u32),
    /// Width and height of what is shown, when that is not the file itself.
    pub shown: Option<(u32, u32)>,
    /// Whether the file has further pictures that are not shown.
    pub is_animated: bool,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// Too large to be decoded.
    #[error(
        "it is larger than {DECODED_SIDE} pixels on a side or 256 MiB of pixels; make it smaller with `bash` first"
    )]
    TooLarge,
    /// Not what its first bytes promise.
    #[error("it cannot be decoded: {0}")]
    Broken(String),
    /// No smaller form of it was small enough.
    #[error("it is not below {ENCODED} bytes in any form that was tried")]
    Incompressible,
}

impl From<ImageError> for PictureError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Limits(_) => Self::TooLarge,
            error => Self::Broken(error.to_string()),
        }
    }
}

/// Decodes `bytes`, which begin as `format` does.
///
/// # Errors
/// See [`PictureError`].
pub fn picture(bytes: Vec<u8>, format: ImageFormat) -> Result<Picture, PictureError> {
    let mut reader = ImageReader::with_format(Cursor::new(&bytes), format);
    let mut limits = Limits::no_limits();
    (limits.max_image_width, limits.max_image_height) = (Some(DECODED_SIDE), Some(DECODED_SIDE));
    limits.max_alloc = Some(DECODED);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    // The limits bind the decoder's own buffers, not the one that the pixels go to.
    if decoder.total_bytes() > DECODED {
        return Err(PictureError::TooLarge);
    }
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    let size = (image.width(), image.height());
    let is_animated = is_animated(&bytes, format);
    let fits = size.0 <= SIDE && size.1 <= SIDE && bytes.len() <= ENCODED;
    if let Some(mime) = shown_as_it_is(format)
        && fits
        && !is_animated
        && is_complete(&bytes, format)
    {
        return Ok(Picture { mime, bytes, size, shown: None, is_animated });
    }
    image.apply_orientation(orientation);
    if image.width() > SIDE || image.height() > SIDE {
        image = image.thumbnail(SIDE, SIDE);
    }
    let (mime, bytes, shown) = encode(image, matches!(format, ImageFormat::Jpeg | ImageFormat::WebP))?;
    Ok(Picture { mime, bytes, size, shown: Some(shown), is_animated })
}

const fn shown_as_it_is(format: ImageFormat) -> Option<&'static str> {
    match format {
        ImageFormat::Png => Some("image/png"),
        ImageFormat::Jpeg => Some("image/jpeg"),
        ImageFormat::Gif => Some("image/gif"),
        ImageFormat::WebP => Some("image/webp"),
        _ => None,
    }
}

/// Whether there is more than one picture. Only the first was decoded, so only that one is sure to be sound.
fn is_animated(bytes: &[u8], format: ImageFormat) -> bool {
    let source = Cursor::new(bytes);
    match format {
        ImageFormat::Png => PngDecoder::new(source).and_then(|png| png.is_apng()).unwrap_or(false),
        ImageFormat::WebP => WebPDecoder::new(source).is_ok_and(|webp| webp.has_animation()),
        ImageFormat::Gif => GifDecoder::new(source).is_ok_and(|gif| gif.into_frames().take(2).count() == 2),
        _ => false,
    }
}

/// The decoder fills a JPEG that was cut with grey; others that show it may refuse it.
fn is_complete(bytes: &[u8], format: ImageFormat) -> bool {
    let padding = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    format != ImageFormat::Jpeg || bytes[..bytes.len() - padding].ends_with(&[0xff, 0xd9])
}

type Encoded = (&'static str, Vec<u8>, (u32, u32));

/// The first form of `image` that is small enough: lossless where the file was, then JPEG, then smaller.
fn encode(mut image: DynamicImage, lossy: bool) -> Result<Encoded, PictureError> {
    const HALVINGS: usize = 4;
    for _ in 0..HALVINGS {
        let size = (image.width(), image.height());
        let has_alpha = image.color().has_alpha();
        if !lossy || has_alpha {
            let eight_bits: DynamicImage = if has_alpha { image.to_rgba8().into() } else { image.to_rgb8().into() };
            let mut bytes = Cursor::new(Vec::new());
            eight_bits.write_to(&mut bytes, ImageFormat::Png)?;
            if bytes.get_ref().len() <= ENCODED {
                return Ok(("image/png", bytes.into_inner(), size));
            }
        }
        let flat = on_white(&image);
        for quality in [85, 60] {
            let mut bytes = Vec::new();
            JpegEncoder::new_with_quality(&mut bytes, quality).encode_image(&flat)?;
            if bytes.len() <= ENCODED {
                return Ok(("image/jpeg", bytes, size));
            }
        }
        image = image.thumbnail((size.0 / 2).max(1), (size.1 / 2).max(1));
    }
    Err(PictureError::Incompressible)
}

fn on_white(image: &DynamicImage) -> RgbImage {
    if !image.color().has_alpha() {
        return image.to_rgb8();
    }
    let source = image.to_rgba8();
    let mut flat = RgbImage::new(source.width(), source.height());
    for (to, from) in flat.pixels_mut().zip(source.pixels()) {
        let [red, green, blue, alpha] = from.0.map(u32::from);
        let mix = |colour: u32| u8::try_from((colour * alpha + 255 * (255 - alpha)) / 255).unwrap_or(u8::MAX);
        *to = Rgb([mix(red), mix(green), mix(blue)]);
    }
    flat
}

#[cfg(test)]
mod tests {
    use image::{Frame, GenericImageView, ImageBuffer, Rgba, RgbaImage, codecs::gif::GifEncoder};

    use super::*;

    fn gradient(width: u32, height: u32) -> DynamicImage {
        ImageBuffer::from_fn(width, height, |x, y| Rgb([(x % 256) as u8, (y % 256) as u8, 90])).into()
    }

    fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn size_of(picture: &Picture) -> (u32, u32) {
        image::load_from_memory(&picture.bytes).unwrap().dimensions()
    }

    #[test]
    fn small_pictures_are_shown_as_they_are() {
        for (format, mime) in [
            (ImageFormat::Png, "image/png"),
            (ImageFormat::Jpeg, "image/jpeg"),
            (ImageFormat::Gif, "image/gif"),
            (ImageFormat::WebP, "image/webp"),
        ] {
            let bytes = encoded(&gradient(40, 30), format);
            let picture = picture(bytes.clone(), format).unwrap();
            assert_eq!(picture, Picture { mime, bytes, size: (40, 30), shown: None, is_animated: false });
        }
    }

    #[test]
    fn large_pictures_are_made_smaller_in_proportion() {
        let picture = picture(encoded(&gradient(3_000, 1_500), ImageFormat::Png), ImageFormat::Png).unwrap();
        assert_eq!((picture.size, picture.shown, picture.mime), ((3_000, 1_500), Some((2_000, 1_000)), "image/png"));
        assert_eq!(size_of(&picture), (2_000, 1_000));
    }

    #[test]
    fn other_formats_are_shown_as_png() {
        let picture = picture(encoded(&gradient(5, 4), ImageFormat::Bmp), ImageFormat::Bmp).unwrap();
        assert_eq!((picture.mime, picture.shown, size_of(&picture)), ("image/png", Some((5, 4)), (5, 4)));
    }

    #[test]
    fn noise_goes_below_the_limit_as_jpeg() {
        let mut state = 1_u32;
        let noise: DynamicImage = ImageBuffer::from_fn(1_300, 1_000, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Rgba([(state >> 24) as u8, (state >> 16) as u8, (state >> 8) as u8, 200])
        })
        .into();
        let bytes = encoded(&noise, ImageFormat::Png);
        assert!(bytes.len() > ENCODED);
        let picture = picture(bytes, ImageFormat::Png).unwrap();
        assert!(picture.mime == "image/jpeg" && picture.bytes.len() <= ENCODED);
    }

    #[test]
    fn of_an_animation_the_first_picture_is_shown() {
        let mut bytes = Vec::new();
        let mut encoder = GifEncoder::new(&mut bytes);
        for shade in [10, 200] {
            encoder.encode_frame(Frame::new(RgbaImage::from_pixel(8, 8, Rgba([shade, 0, 0, 255])))).unwrap();
        }
        drop(encoder);
        let picture = picture(bytes, ImageFormat::Gif).unwrap();
        assert!(picture.is_animated && picture.mime == "image/png" && size_of(&picture) == (8, 8));
    }

    #[test]
    fn what_cannot_be_decoded_is_an_error() {
        let png = encoded(&gradient(40, 30), ImageFormat::Png);
        assert!(matches!(picture(png[..png.len() / 2].to_vec(), ImageFormat::Png), Err(PictureError::Broken(_))));
        for (format, head) in [
            (ImageFormat::Png, &b"\x89PNG\r\n\x1a\n"[..]),
            (ImageFormat::Jpeg, b"\xff\xd8\xff\xe0"),
            (ImageFormat::Gif, b"GIF89a"),
            (ImageFormat::WebP, b"RIFF\x10\0\0\0WEBPVP8 "),
            (ImageFormat::Bmp, b"BM\x36\0\x0c\0\0\0\0\0\x36"),
        ] {
            let mut noise = head.to_vec();
            noise.extend((0..2_048_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8));
            assert!(picture(noise, format).is_err(), "{format:?}");
            assert!(picture(head.to_vec(), format).is_err(), "{format:?} alone");
        }
    }

    #[test]
    fn a_cut_jpeg_is_shown_as_a_whole_one() {
        let mut bytes = encoded(&gradient(300, 300), ImageFormat::Jpeg);
        bytes.truncate(bytes.len() * 3 / 4);
        match picture(bytes.clone(), ImageFormat::Jpeg) {
            Ok(picture) => assert!(picture.bytes != bytes && size_of(&picture) == (300, 300)),
            Err(error) => assert!(matches!(error, PictureError::Broken(_))),
        }
    }

    #[test]
    fn a_picture_of_too_many_pixels_is_not_decoded() {
        // A PNG header alone that promises 60,000 x 60,000 pixels.
        let mut bytes = encoded(&gradient(1, 1), ImageFormat::Png);
        for side in [16..20, 20..24] {
            bytes[side].copy_from_slice(&60_000_u32.to_be_bytes());
        }
        let checksum = crc(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
        assert!(matches!(picture(bytes, ImageFormat::Png), Err(PictureError::TooLarge)));
    }

    /// CRC-32 as PNG chunks carry it.
    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
        })
    }
}
