-- How many are there now, those included that came up before the locks were had?
SELECT count(*) FROM (
-- include: kin
) AS kin
