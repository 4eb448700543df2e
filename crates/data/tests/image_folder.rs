//! Which files `ImageFolder` lists, and in which order.

#![cfg(feature = "images")]

use pagelock_data::{Dataset, ImageFolder};

/// torchvision's order: a folder's own files, then its folders, these by their paths as text.
#[test]
fn a_class_has_the_pictures_of_all_folders_in_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a/z.png", "a/in/2.png", "a/in/1.png", "a/in/deep/0.png", "a/in-other/3.png", "b/x.png/4.png"];
    for (value, file) in files.iter().enumerate() {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(1, 1, image::Rgb([value as u8; 3])).save(path).unwrap();
    }
    let pictures = ImageFolder::open(folder.path()).unwrap();
    let listed: Vec<_> = (0..pictures.len()).map(|index| pictures.get(index).unwrap()).collect();
    let values: Vec<u8> = listed.iter().map(|(picture, _)| picture.to_vec::<u8>().unwrap()[0]).collect();
    assert_eq!(values, [0, 2, 1, 4, 3, 5]);
    assert_eq!(listed.iter().map(|(_, class)| *class).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1]);

    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let text = ImageFolder::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("empty` cannot be used: it has no picture; "), "{text}");
}

#[cfg(unix)]
#[test]
fn a_folder_of_pictures_that_links_to_itself_is_refused() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("a");
    std::fs::create_dir(&class).unwrap();
    image::RgbImage::new(1, 1).save(class.join("1.png")).unwrap();
    symlink("nowhere", class.join("notes.txt")).unwrap();
    assert_eq!(ImageFolder::open(folder.path()).unwrap().len(), 1, "a broken link that is no picture is left out");
    symlink("../a", class.join("again")).unwrap();
    let text = ImageFolder::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("again"), "{text}");
}

/// The crate `image` unpacks such pixels to bytes, and takes the header's type for that of the bytes.
#[test]
fn a_png_with_pixels_of_less_than_a_byte_that_is_packed_well_is_whole() {
    const GRAY: u8 = 0;
    const PALETTE: u8 = 3;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    let path = folder.path().join("a/1.png");
    for (color, bits, white) in [(GRAY, 1_u32, 255), (GRAY, 4, 17), (PALETTE, 1, 9), (PALETTE, 4, 9)] {
        let content = png(2_000, color, bits);
        std::fs::write(&path, &content).unwrap();
        let pictures = ImageFolder::open(folder.path()).unwrap();
        let (picture, _) = pictures.get(0).unwrap();
        assert_eq!((picture.dims(), picture.to_vec::<u8>().unwrap()[2_000 * 3 + 3]), (&[2_000, 2_000, 3][..], white));
        std::fs::write(&path, &content[..200]).unwrap();
        let text = pictures.get(0).unwrap_err().to_string();
        assert!(text.contains("it is cut off: 200 bytes cannot hold its 2000 x 2000 pixels"), "{text}");
    }
}

/// A square picture whose second pixel in each row is 1, and all others 0. Color 1 of the palette is `[9, 9, 9]`.
fn png(side: u32, color: u8, bits: u32) -> Vec<u8> {
    use std::io::Write;

    let mut pixels = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    let mut row = vec![0; 1 + (side * bits).div_ceil(8) as usize];
    row[1] = 1 << (8 - 2 * bits);
    (0..side).for_each(|_| pixels.write_all(&row).unwrap());
    let mut content = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |name: &[u8], bytes: &[u8]| {
        let mut checksum = flate2::Crc::new();
        [name, bytes].iter().for_each(|part| checksum.update(part));
        content.extend((bytes.len() as u32).to_be_bytes());
        content.extend([name, bytes, &checksum.sum().to_be_bytes()].concat());
    };
    let side = side.to_be_bytes();
    chunk(b"IHDR", &[&side[..], &side, &[bits as u8, color, 0, 0, 0]].concat());
    chunk(b"PLTE", &[0, 0, 0, 9, 9, 9]);
    chunk(b"IDAT", &pixels.finish().unwrap());
    chunk(b"IEND", &[]);
    content
}
