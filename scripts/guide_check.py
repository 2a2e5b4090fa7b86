#!/usr/bin/env python3
"""Opens a page of `regard guide` in Debian's chromium and checks it.

    ./dev guide-check                       # writes a page with --quick, then checks it
    guide_check.py guide.html --screenshots FOLDER

No console errors and no requests, a sound accessibility tree, keyboard, contrast, and no sideways
scrolling on a narrow screen, in light and dark. Screenshots and a PDF are left in FOLDER, to be
looked at. Exit code 1: something is wrong.
"""

import argparse
import re
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SCREENS = {"wide": (1280, 900), "narrow": (360, 740)}
MIN_CONTRAST = 4.5

# Of every element with text of its own: the contrast of its colour with what lies behind it.
CONTRAST = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ['title', 'desc'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const colour = parse(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(colour), light(behind(element))].sort((x, y) => y - x);
    low.push([(a + 0.05) / (b + 0.05), element.tagName + ': ' + element.textContent.slice(0, 40)]);
  }
  return low;
}"""

HEADINGS = "() => [...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))"
NAMES = """() => ({
  tables: [...document.querySelectorAll('table')].map(t => t.caption ? t.caption.textContent : ''),
  heads: [...document.querySelectorAll('th')].filter(h => !h.scope).length,
  regions: [...document.querySelectorAll('[role=region]')].map(
      r => r.tabIndex === 0 && (r.getAttribute('aria-label') ||
                                document.getElementById(r.getAttribute('aria-labelledby')))),
})"""
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Check:
    def __init__(self):
        self.count, self.wrong = 0, []

    def that(self, holds, what):
        self.count += 1
        if not holds:
            self.wrong.append(what)
            print(f"WRONG {what}")


def check_structure(check, page):
    """What does not depend on the screen: names, headings, keyboard, the accessibility tree."""
    names = page.evaluate(NAMES)
    check.that(names["tables"] and all(names["tables"]), "every table has a caption")
    check.that(names["heads"] == 0, "every head of a table has a scope")
    check.that(names["regions"] and all(names["regions"]), "what scrolls has a name and the focus")
    levels = page.evaluate(HEADINGS)
    check.that(levels[:1] == [1] and levels.count(1) == 1, "one heading of the first level, first")
    check.that(all(b - a <= 1 for a, b in zip(levels, levels[1:])), "headings skip no level")
    tree = page.locator("body").aria_snapshot()
    for role in ("banner", "main", "contentinfo", "navigation"):
        check.that(len(re.findall(rf"^\s*- {role}\b", tree, re.M)) == 1, f"one {role}")
    charts = page.locator("svg.chart").count()
    named = re.findall(r"^\s*- img \"[^\"]+\"", tree, re.M)
    check.that(charts > 0 and len(named) == charts, f"{charts} charts have names, got {len(named)}")
    page.keyboard.press("Tab")
    focused = page.evaluate("() => document.activeElement.getAttribute('href')")
    check.that(focused == "#answers", "the first Tab stops at the link to the answers")
    box = page.locator(".skip").bounding_box()
    check.that(box is not None and box["x"] >= 0, "which is visible then")
    page.keyboard.press("Enter")
    check.that(page.evaluate("() => location.hash") == "#answers", "and leads there")
    return tree


def check_screen(check, page, name):
    sideways = page.evaluate(SIDEWAYS)
    check.that(sideways <= 0, f"{name}: the page is {sideways} pixels too wide")
    for contrast, text in page.evaluate(CONTRAST):
        check.that(contrast >= MIN_CONTRAST, f"{name}: contrast {contrast:.1f} of {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--screenshots", type=Path, default=Path("build/guide"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.screenshots.mkdir(parents=True, exist_ok=True)
    check, complaints, requests = Check(), [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for screen, (width, height) in SCREENS.items():
                page = browser.new_page(viewport={"width": width, "height": height},
                                        color_scheme=scheme)
                page.on("console", lambda message: complaints.append(message.text))
                page.on("pageerror", lambda error: complaints.append(str(error)))
                page.on("request", lambda request: requests.append(request.url))
                page.goto(options.page.resolve().as_uri())
                page.screenshot(path=options.screenshots / f"{screen}-{scheme}.png", full_page=True)
                check_screen(check, page, f"{screen} {scheme}")
                if (screen, scheme) == ("wide", "light"):
                    tree = check_structure(check, page)
                    (options.screenshots / "accessibility.txt").write_text(tree + "\n")
                    page.emulate_media(media="print")
                    page.set_viewport_size({"width": 794, "height": 1123})  # A4
                    check.that(page.evaluate(SIDEWAYS) <= 0, "paper is wide enough")
                    page.screenshot(path=options.screenshots / "print.png", full_page=True)
                    page.pdf(path=options.screenshots / "print.pdf", format="A4")
                page.close()
        version = browser.version
        browser.close()
    own = {options.page.resolve().as_uri(), "data:,"}
    check.that(not complaints, f"the console is silent: {complaints}")
    check.that(all(url.partition("#")[0] in own for url in requests), f"no requests: {requests}")
    print(f"chromium {version}: {check.count} checks, {len(check.wrong)} wrong; "
          f"look at {options.screenshots}")
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
