"""Methods of search on the same items: what each finds, scans and takes."""
