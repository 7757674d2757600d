"""Custody: what is done with a state over the years, beside taking steps.

collect    what no version names any more is deleted
rollback   an older version becomes the newest, when that is damaged or was a mistake
migrate    a log is replayed under another plan, and only the net difference comes out
compact    history goes, and with it, where that is asked for, every byte of rows that were deleted
"""
