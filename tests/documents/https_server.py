"""A web server for files, over TLS, that answers ranges: https_server.py DIRECTORY CERTIFICATE KEY."""

import http.server
import os
import re
import ssl
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers a range of a file, as web servers do and this one alone does not."""

    protocol_version = "HTTP/1.1"

    def send_head(self):
        """The head of an answer, and the file where its body begins."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = self.translate_path(self.path)
        if not wanted or not os.path.isfile(path):
            return super().send_head()
        size = os.path.getsize(path)
        start = int(wanted.group(1))
        end = min(int(wanted.group(2) or size - 1), size - 1)
        if start > end:
            self.send_error(416)
            return None
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        if self.command == "GET":
            with open(path, "rb") as file:
                file.seek(start)
                self.wfile.write(file.read(end - start + 1))
        return None


def main():
    """Serves until it is ended."""
    directory, certificate, key = sys.argv[1:]
    os.chdir(directory)
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 443), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
