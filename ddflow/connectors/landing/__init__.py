"""Follow files that arrive in a folder or in a bucket, as the source ``dd.sources.files``.

`LandingSource` reads the rows of each new file once, after the file is complete. `FileListing` lists the files that
match a pattern, in a local folder or in S3.
"""
