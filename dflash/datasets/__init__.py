"""What the data sets are, where their rows come from, and how a row becomes a prompt.

`spec` says what an entry is; `catalogue` has the entries (`entries_*`), `custom` makes one for a user's own rows,
`templates*` turn rows into prompts. `files` reads rows (`csv_rows`, `file_faults`); `sources` finds them (`hub`,
`download`); `cache` fetches into the cache and `stored` says what it holds; `selection` chooses; `listing` shows
the catalogue. `dflash.dataset_store` is the entrance.
"""
