-- Lock the kin of a job that is about to be copied. Nobody dies then whose undo job would not know of
-- the new copy.
-- include: kin
ORDER BY id DESC
FOR NO KEY UPDATE
