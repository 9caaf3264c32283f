#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn resolve_store_url(url: &str, base: &Path) -> Result<String, StoreError> {
    Ok(StoreAddress::parse(url)?.resolve_against(base))
}

#[test]
fn an_address_that_is_kept_does_not_depend_on_the_directory_it_was_typed_in() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("far/away")).unwrap();
    std::fs::create_dir(root.join("work")).unwrap();
    std::os::unix::fs::symlink(root.join("far/away"), root.join("work/link")).unwrap();
    for (typed, kept) in [
        ("../store", "store"),
        ("./store/.", "work/store"),
        ("missing/../store", "work/store"),
        ("link/store", "work/link/store"),
        ("link/../store", "far/store"),
    ] {
        let expected = root.join(kept).display().to_string();
        assert_eq!(resolve_store_url(typed, &root.join("work")).unwrap(), expected, "{typed}");
    }
}

#[test]
fn addresses_that_no_version_can_mean_are_usage_errors() {
    for (url, kind) in [
        ("", ErrorKind::Usage),
        ("file://host/x", ErrorKind::Usage),
        ("host:/x", ErrorKind::Usage),
        ("user:pass@host:x", ErrorKind::Usage),
        ("user:pass@pass@host:x", ErrorKind::Usage),
        ("sftp:host", ErrorKind::Usage),
        ("s3:bucket", ErrorKind::Usage),
        ("s3:user:pass@bucket", ErrorKind::Usage),
        ("memory:", ErrorKind::Usage),
        ("~/x", ErrorKind::Usage),
        ("~ann/x", ErrorKind::Usage),
        ("ftp://user:pass@host/x?token=1", ErrorKind::Unsupported),
        ("s3://user:pass@bucket/x?token=1", ErrorKind::Usage),
        ("s3://bucket/x?endpoint=https://user:pass@host", ErrorKind::Usage),
        ("s3://bucket/x?secret-access-key=pass", ErrorKind::Usage),
        ("s3://bucket/x?region=pass!", ErrorKind::Usage),
        ("s3://", ErrorKind::Usage),
        ("s3:///x", ErrorKind::Usage),
        ("s3://b!cket/x", ErrorKind::Usage),
        ("s3://bucket/../x", ErrorKind::Usage),
        ("s3://bucket/a//b", ErrorKind::Usage),
        ("s3://bucket/a%2Fb", ErrorKind::Usage),
        ("s3://bucket/a\nb", ErrorKind::Usage),
        ("s3://bucket/a?endpoint=http://example.org", ErrorKind::Usage),
        ("s3://bucket/a?endpoint=ftp://example.org", ErrorKind::Usage),
        ("gs://bucket/a?region=eu", ErrorKind::Usage),
        ("http://example.org/a", ErrorKind::Usage),
        ("https://user:pass@host/a", ErrorKind::Usage),
        ("https://host/../a", ErrorKind::Usage),
        ("https://host/a?single-writer", ErrorKind::Usage),
        ("https://host/a?endpoint=https://host", ErrorKind::Usage),
        ("webdavs://user:pass@host/a", ErrorKind::Usage),
        ("webdavs:///a", ErrorKind::Usage),
        ("webdavs://ho st/a", ErrorKind::Usage),
        ("webdavs://host:99999/a", ErrorKind::Usage),
        ("webdavs://[::g]/a", ErrorKind::Usage),
        ("webdavs://host/a?single-writer", ErrorKind::Usage),
        ("webdavs://host/a?region=eu", ErrorKind::Usage),
        ("webdavs://host/a?endpoint=https://host", ErrorKind::Usage),
        ("webdav://example.org/a", ErrorKind::Usage),
        ("s3://bucket/a?single-writer=pass", ErrorKind::Usage),
        ("sftp://user:pass@host/x", ErrorKind::Usage),
        ("sftp://-oProxyCommand=x/x", ErrorKind::Usage),
        ("sftp://host", ErrorKind::Usage),
        ("sftp://host/a?token=pass", ErrorKind::Usage),
    ] {
        let Err(error) = StoreAddress::parse(url) else { panic!("{url} was accepted") };
        assert_eq!(error.kind(), kind, "{url}");
        let text = error.to_string();
        assert!(!text.contains("pass") && !text.contains("token"), "{text}");
        assert!(!text.contains('\n'), "{text:?}");
    }
}

#[test]
fn paths_with_colons_are_paths_where_nothing_else_can_be_meant() -> Result<(), StoreError> {
    let base = Path::new("/base");
    assert_eq!(resolve_store_url("./host:x", base)?, "/base/host:x");
    assert_eq!(resolve_store_url("/a:b/c", base)?, "/a:b/c");
    assert_eq!(resolve_store_url("dir/a:b", base)?, "/base/dir/a:b");
    assert_eq!(resolve_store_url("./~/x", base)?, "/base/~/x");
    assert_eq!(resolve_store_url("file:///a", base)?, "/a");
    assert_eq!(resolve_store_url("memory://x", base)?, "memory://x");
    Ok(())
}

#[test]
fn addresses_of_services_are_kept_as_they_were_typed() -> Result<(), StoreError> {
    for (typed, kept) in [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        (
            "s3://bucket/a?style=path&endpoint=https://host:9000/&region=eu-1",
            "s3://bucket/a?endpoint=https://host:9000&region=eu-1&style=path",
        ),
        ("s3://bucket?endpoint=http://127.0.0.1:8333", "s3://bucket?endpoint=http://127.0.0.1:8333"),
        ("s3://bucket?endpoint=http://[::1]:8333", "s3://bucket?endpoint=http://[::1]:8333"),
        ("s3://bucket?endpoint=http://far&allow-http", "s3://bucket?endpoint=http://far&allow-http"),
        ("s3://bucket?single-writer&allow-http", "s3://bucket?allow-http&single-writer"),
        ("webdavs://host:444/a/b/", "webdavs://host:444/a/b"),
        ("webdav://[::1]:8080/a", "webdav://[::1]:8080/a"),
        ("webdav://far/a?allow-http", "webdav://far/a?allow-http"),
        ("https://host:444/a/b/?ca=/etc/ca.pem", "https://host:444/a/b?ca=/etc/ca.pem"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://far/a?allow-http", "http://far/a?allow-http"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("sftp://ann@host:22/a/b/", "sftp://ann@host:22/a/b"),
        ("sftp://host/~/a", "sftp://host/~/a"),
        ("az://container/x?ca=/etc/ca.pem", "az://container/x?ca=/etc/ca.pem"),
    ] {
        assert_eq!(resolve_store_url(typed, Path::new("/base"))?, kept);
        assert_eq!(resolve_store_url(kept, Path::new("/base"))?, kept);
    }
    Ok(())
}
