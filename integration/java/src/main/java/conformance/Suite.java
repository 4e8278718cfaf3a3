package conformance;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A list of named checks with a plain report. */
final class Suite {
    interface Body {
        void run() throws Exception;
    }

    /** Thrown by a check that cannot run here. */
    static final class Skip extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Skip(String why) {
            super(why);
        }
    }

    /** conf.only and conf.skip hold group letters, single checks or both, with commas between: "abj", "a3,f1", "de,j15". */
    private static boolean chosen(String id) {
        return (Conf.ONLY.isEmpty() || names(Conf.ONLY, id)) && !names(Conf.SKIP, id);
    }

    private static boolean names(String list, String id) {
        for (String entry : list.split(",")) {
            if (entry.equals(id) || !entry.matches(".*[0-9].*") && entry.contains(id.substring(0, 1))) {
                return true;
            }
        }
        return false;
    }

    private static final class Check {
        final String id;
        final String what;
        final String known;
        final Body body;

        Check(String id, String what, String known, Body body) {
            this.id = id;
            this.what = what;
            this.known = known;
            this.body = body;
        }
    }

    private final Map<String, List<Check>> groups = new LinkedHashMap<>();
    private String current;

    void group(String letter) {
        this.current = letter;
        this.groups.put(letter, new ArrayList<>());
    }

    void test(String what, Body body) {
        this.add(what, null, body);
    }

    /**
     * A check of something one would expect, and which the original does not do. It never fails the run unless
     * conf.strict is set. The text says what the original does instead.
     */
    void knownDifference(String what, String original, Body body) {
        this.add(what, original, body);
    }

    private void add(String what, String known, Body body) {
        List<Check> list = this.groups.get(this.current);
        list.add(new Check(this.current + (list.size() + 1), what, known, body));
    }

    /** Runs everything asked for; true when nothing failed. */
    boolean run() {
        int passed = 0;
        int failed = 0;
        int skipped = 0;
        int known = 0;
        List<String> failures = new ArrayList<>();
        for (List<Check> group : this.groups.values()) {
            for (Check check : group) {
                if (!chosen(check.id)) {
                    skipped++;
                    continue;
                }
                long start = System.nanoTime();
                String verdict;
                Throwable error = null;
                try {
                    check.body.run();
                    verdict = check.known == null ? "ok   " : "ok * ";
                    passed++;
                }
                catch (Skip e) {
                    verdict = "skip ";
                    error = e;
                    skipped++;
                }
                catch (Throwable e) {
                    error = e;
                    if (check.known != null && !Conf.STRICT) {
                        verdict = "known";
                        known++;
                        skipped++;
                    }
                    else {
                        verdict = "FAIL ";
                        failed++;
                        failures.add(check.id + " " + check.what + ": " + brief(e));
                    }
                }
                finally {
                    Kit.closeAll();
                }
                System.out.printf("%s %-4s %s (%d ms)%s%n", verdict, check.id, check.what,
                    (System.nanoTime() - start) / 1_000_000, error == null ? "" : " -- " + brief(error));
                if (verdict.equals("known")) {
                    System.out.println("           the original: " + check.known);
                }
                if (verdict.equals("FAIL ") && Boolean.getBoolean("conf.trace")) {
                    error.printStackTrace(System.out);
                }
            }
        }
        if (!failures.isEmpty()) {
            System.out.println("failures:");
            for (String f : failures) {
                System.out.println("  " + f);
            }
        }
        System.out.println("known differences seen: " + known + " (counted as skipped)");
        System.out.println(passed + " passed, " + failed + " failed, " + skipped + " skipped");
        return failed == 0;
    }

    private static String brief(Throwable e) {
        String text = e instanceof AssertionError || e instanceof Skip ? e.getMessage() : e.toString();
        if (text == null) {
            text = e.toString();
        }
        text = text.replace("\r", "\\r").replace("\n", "\\n");
        return text.length() > 400 ? text.substring(0, 400) + "..." : text;
    }
}
