//! The XML of uploads in parts: what services answer, and the list that finishes an upload.
//!
//! Invariant: any bytes are accepted, and memory is bounded by them. Elements are found by their names; no element that is
//! used here has attributes.

/// Most digits of a number in an answer, a count.
const DIGITS_MAX: usize = 19;

/// A part that the service has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::object::service) struct StoredPart {
    /// From 1.
    pub number: u32,
    /// Its length, bytes.
    pub size: u64,
    /// Its tag, as the service writes it.
    pub tag: String,
}

/// Some of the parts that the service has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::object::service) struct PartPage {
    /// The parts; what has no number, length or tag is left out.
    pub parts: Vec<StoredPart>,
    /// The number after which there are more.
    pub next: Option<u32>,
}

/// The text of the first element of this name.
pub(super) fn find_text(xml: &str, name: &str) -> Option<String> {
    find_element(xml, name).map(|element| unescape_text(element.text.trim())).filter(|text| !text.is_empty())
}

/// An element, and what comes after it.
struct FoundElement<'a> {
    text: &'a str,
    rest: &'a str,
}

fn find_element<'a>(xml: &'a str, name: &str) -> Option<FoundElement<'a>> {
    let (_, inner) = xml.split_once(&format!("<{name}>"))?;
    let (text, rest) = inner.split_once(&format!("</{name}>"))?;
    Some(FoundElement { text, rest })
}

/// Reads an answer to `ListParts`; none if it is something else.
pub(super) fn parse_part_page(body: &[u8]) -> Option<PartPage> {
    let xml = std::str::from_utf8(body).ok()?;
    // The root has an attribute, its namespace.
    if !xml.contains("<ListPartsResult") {
        return None;
    }
    let mut parts = Vec::new();
    let mut rest = xml;
    while let Some(element) = find_element(rest, "Part") {
        parts.extend(parse_part(element.text));
        rest = element.rest;
    }
    let is_truncated = find_text(xml, "IsTruncated").as_deref() == Some("true");
    let next = find_number(xml, "NextPartNumberMarker").and_then(|number| u32::try_from(number).ok());
    Some(PartPage { parts, next: next.filter(|_| is_truncated) })
}

/// Reads a list of blocks that belong to no object yet; none if it is something else. Their numbers are 0: only their names,
/// which are their tags, have them.
pub(super) fn find_block_sizes(body: &[u8]) -> Option<Vec<StoredPart>> {
    let xml = std::str::from_utf8(body).ok()?;
    if !xml.contains("<BlockList") {
        return None;
    }
    let uncommitted = find_element(xml, "UncommittedBlocks").map_or("", |element| element.text);
    let mut blocks = Vec::new();
    let mut rest = uncommitted;
    while let Some(element) = find_element(rest, "Block") {
        let block = find_text(element.text, "Name").zip(find_number(element.text, "Size"));
        blocks.extend(block.map(|(tag, size)| StoredPart { number: 0, size, tag }));
        rest = element.rest;
    }
    Some(blocks)
}

/// The list of blocks by which an upload to Azure is finished.
pub(super) fn format_block_list(names: &[String]) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
    for name in names {
        xml.push_str(&format!("<Latest>{}</Latest>", escape_text(name)));
    }
    xml.push_str("</BlockList>");
    xml
}

fn parse_part(xml: &str) -> Option<StoredPart> {
    Some(StoredPart {
        number: u32::try_from(find_number(xml, "PartNumber")?).ok()?,
        size: find_number(xml, "Size")?,
        tag: find_text(xml, "ETag")?,
    })
}

fn find_number(xml: &str, name: &str) -> Option<u64> {
    let text = find_text(xml, name)?;
    let is_number = text.len() <= DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The list of parts, numbered from 1, by which an upload is finished.
pub(super) fn format_part_list(tags: &[String]) -> String {
    let mut xml = String::from("<CompleteMultipartUpload>");
    for (number, tag) in (1_u32..).zip(tags) {
        let tag = escape_text(tag);
        xml.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"));
    }
    xml.push_str("</CompleteMultipartUpload>");
    xml
}

fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Replaces the entities that tags and ids are written with.
fn unescape_text(text: &str) -> String {
    let quoted = text.replace("&quot;", "\"").replace("&#34;", "\"").replace("&#x22;", "\"");
    // Last, or a text that spells an entity would become the character.
    quoted.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// Reads any bytes as an answer.
///
/// # Panics
/// When a list that is made of what was read has other tags.
pub(crate) fn fuzz_decoder(bytes: &[u8]) {
    for block in find_block_sizes(bytes).unwrap_or_default() {
        let list = format_block_list(std::slice::from_ref(&block.tag));
        assert_eq!(
            find_text(&list, "Latest"),
            Some(block.tag),
            "a name that is sent is the one that was read"
        );
    }
    let Some(page) = parse_part_page(bytes) else { return };
    for part in page.parts {
        let list = format_part_list(std::slice::from_ref(&part.tag));
        assert_eq!(find_text(&list, "ETag"), Some(part.tag), "a tag that is sent is the one that was read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<?xml version=\"1.0\"?><ListPartsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
        <UploadId>u</UploadId><NextPartNumberMarker>2</NextPartNumberMarker><IsTruncated>true</IsTruncated>\
        <Part><PartNumber>1</PartNumber><ETag>&quot;a&amp;quot;b&quot;</ETag><Size>8</Size></Part>\
        <Part><PartNumber>x</PartNumber><ETag>\"c\"</ETag><Size>8</Size></Part>\
        <Part><ETag>\"d\"</ETag><PartNumber>2</PartNumber><Size>18446744073709551616</Size></Part>\
        <Part><ETag>\"e\"</ETag><Size>5</Size><PartNumber>2</PartNumber></Part></ListPartsResult>";

    #[test]
    fn parts_are_read_and_those_that_make_no_sense_are_left_out() {
        let page = parse_part_page(PAGE.as_bytes());
        let part = |number, size, tag: &str| StoredPart { number, size, tag: tag.to_owned() };
        let parts = vec![part(1, 8, "\"a&quot;b\""), part(2, 5, "\"e\"")];
        assert_eq!(page, Some(PartPage { parts, next: Some(2) }));
        let last = PAGE.replace("true", "false");
        assert_eq!(parse_part_page(last.as_bytes()).map(|page| page.next), Some(None));
        for other in ["", "<Error><Code>x</Code></Error>", "<html>"] {
            assert_eq!(parse_part_page(other.as_bytes()), None, "{other}");
        }
        assert_eq!(parse_part_page(b"<ListPartsResult>\xff"), None);
    }

    #[test]
    fn blocks_that_belong_to_no_object_are_read() {
        let list = "\u{feff}<?xml version=\"1.0\"?><BlockList><CommittedBlocks><Block><Name>b2xk</Name><Size>1</Size></Block>\
            </CommittedBlocks><UncommittedBlocks><Block><Name>bmV3</Name><Size>8</Size></Block>\
            <Block><Size>9</Size></Block></UncommittedBlocks></BlockList>";
        let block = StoredPart { number: 0, size: 8, tag: "bmV3".to_owned() };
        assert_eq!(find_block_sizes(list.as_bytes()), Some(vec![block]));
        assert_eq!(find_block_sizes(b"<BlockList><UncommittedBlocks /></BlockList>"), Some(Vec::new()));
        assert_eq!(find_block_sizes(b"<Error><Code>x</Code></Error>"), None);
        assert!(
            format_block_list(&["bmV3".to_owned()]).contains("<BlockList><Latest>bmV3</Latest></BlockList>")
        );
    }

    #[test]
    fn tags_are_sent_as_they_were_read() {
        let tags = ["\"a&quot;b\"".to_owned(), "<c>".to_owned()];
        let list = format_part_list(&tags);
        assert_eq!(find_text(&list, "ETag").as_ref(), tags.first());
        assert!(list.contains("<PartNumber>2</PartNumber><ETag>&lt;c&gt;</ETag>"), "{list}");
    }
}
