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
